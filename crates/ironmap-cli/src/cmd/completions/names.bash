# Names in a volume, for a word like disk.img:/etc/fs. bash splits it at the characters of COMP_WORDBREAKS, and replaces only its last part.
_ironmap_names() {
    local line=${COMP_LINE:0:COMP_POINT} word last begin name quoted
    local whole='(([^[:space:]\]|\\.)*)$' part="(([^$COMP_WORDBREAKS\\]|\\\\.)*)\$"
    [[ $line =~ $whole ]] && word=${BASH_REMATCH[1]}
    [[ $word == *:/* && $word != host:* ]] || return 1
    [[ $word =~ $part ]] && last=${BASH_REMATCH[1]}
    word=${word//\\/} last=${last//\\/}
    word=${word/#\~\//$HOME/}
    begin=${word%"$last"}
    COMPREPLY=()
    while IFS= read -r name; do
        printf -v quoted %q "${name#"$begin"}"
        COMPREPLY+=("$quoted")
        [[ $name != */ ]] || compopt -o nospace 2>/dev/null
    done < <("$1" complete -- "$word" 2>/dev/null)
    return 0
}
