package main

import (
	"testing/fstest"
)

// The packages that are installed are printed, and those that were removed are not.
func Example_scan() {
	file := func(content string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(content)} }
	err := scan(fstest.MapFS{
		"lib/apk/db/installed":              file("C:Q1x=\nP:musl\nV:1.2.5-r9\n\nP:zlib\nV:1.3.1-r2\n\n"),
		"usr/lib/sysimage/rpm/rpmdb.sqlite": file("SQLite format 3"),
		"var/lib/dpkg/status": file("Package: bash\nStatus: install ok installed\nVersion: 5.2\n\n" +
			"Package: vim\nStatus: deinstall ok config-files\nVersion: 9.1\n"),
	})
	if err != nil {
		panic(err)
	}
	// Output:
	// musl 1.2.5-r9
	// zlib 1.3.1-r2
	// a database of rpm: usr/lib/sysimage/rpm/rpmdb.sqlite
	// bash 5.2
}
