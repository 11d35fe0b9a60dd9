# Reads lines BENCHMARK THREADS KIND ROUND OPS P50 P99 PROCESSOR, and prints a row of JSON for each benchmark, number of threads and kind:
# medians, and medians of the ratios to the kind "default" of the same round.

function median(values, count,    i, j, swap) {
    for (i = 2; i <= count; i++)
        for (j = i; j > 1 && values[j - 1] > values[j]; j--) {
            swap = values[j]; values[j] = values[j - 1]; values[j - 1] = swap
        }
    return count % 2 ? values[(count + 1) / 2] : (values[count / 2] + values[count / 2 + 1]) / 2
}

# The median of a column, or of its ratio to the default.
function of(row, kind, column, ratio,    round, list) {
    for (round = 1; round <= rounds; round++)
        list[round] = value[row, kind, round, column] / (ratio ? value[row, "default", round, column] : 1)
    return median(list, rounds)
}

{
    row = $1 " " $2
    if (!(row in seen)) order[++rows] = row
    seen[row] = 1
    if ($4 > rounds) rounds = $4
    for (column = 5; column <= 8; column++) value[row, $3, $4, column] = $column
}

END {
    split("default ironmap", kinds, " ")
    for (i = 1; i <= rows; i++)
        for (k = 1; k <= 2; k++) {
            split(order[i], name, " ")
            printf "{\"benchmark\": \"%s\", \"threads\": %d, \"file_system\": \"%s\", \"ops_per_second\": %.0f, \"ops_ratio\": %.2f, ",
                name[1], name[2], kinds[k], of(order[i], kinds[k], 5, 0), of(order[i], kinds[k], 5, 1)
            printf "\"p50_us\": %.0f, \"p99_us\": %.0f, \"p99_ratio\": %.2f, \"cpu_us_per_op\": %.1f, \"cpu_ratio\": %.2f}\n",
                of(order[i], kinds[k], 6, 0), of(order[i], kinds[k], 7, 0), of(order[i], kinds[k], 7, 1),
                of(order[i], kinds[k], 8, 0), of(order[i], kinds[k], 8, 1)
        }
}
