# Names in a volume, for a word like disk.img:/etc/fs.
function __ironmap_word
    commandline -ct | string unescape
end
function __ironmap_is_name
    __ironmap_word | string match -qr '^(?!host:).*:/'
end
complete -c ironmap -n __ironmap_is_name -k -f -a '(ironmap complete -- (__ironmap_word) 2>/dev/null)'
