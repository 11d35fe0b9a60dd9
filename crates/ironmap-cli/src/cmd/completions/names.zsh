# Names in a volume, for a word like disk.img:/etc/fs.
_ironmap_names() {
    local word=${(Q)PREFIX}
    [[ $word == *:/* && $word != host:* ]] || return 1
    local typed=$word
    [[ $word != \~/* ]] || word=$HOME/${word#\~/}
    local -a names=(${(f)"$($words[1] complete -- $word 2>/dev/null)"})
    names=($typed${^names#$word})
    compadd -S '' -- ${(M)names:#*/}
    compadd -- ${names:#*/}
    return 0
}
