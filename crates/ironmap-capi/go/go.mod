module ironmap

go 1.25
