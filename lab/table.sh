#!/usr/bin/env bash
# Prints a table of the instructions that reads need: lab/table.sh CONSOLE COUNTS
#
# For each line "reads ENGINE TARGET DEPTH BUFFERS COUNT" in CONSOLE, there is a line "PROGRAM KERNEL" in COUNTS. A row contains the window
# with the lowest sum.
set -euo pipefail
echo "| engine | target | depth | buffers | program | kernel | together |"
echo "|---|---|--:|---|--:|--:|--:|"
paste -d ' ' <(sed -n 's/^reads //p' "$1") "$2" | awk 'NF == 7 {
    name = $1 " | " $2 " | " $3 " | " $4
    program = $6 / $5; kernel = $7 / $5; together = program + kernel
    if (!(name in least)) names[++rows] = name
    else if (together >= least[name]) next
    least[name] = together
    row[name] = sprintf("| %s | %.0f | %.0f | %.0f |", name, program, kernel, together)
} END { for (at = 1; at <= rows; at++) print row[names[at]] }'
