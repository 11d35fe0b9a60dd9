// Scan prints the packages that are installed in images of disks. It changes nothing, and needs no mount:
//
//	scan disk.img qcow2:disk.qcow2@p1
package main

import (
	"fmt"
	"io/fs"
	"log"
	"os"
	"strings"

	"ironmap"
)

// packages prints a database whose paragraphs have a line for the name and one for the version of a package.
func packages(tree fs.FS, path, name, version string) error {
	content, err := fs.ReadFile(tree, path)
	for paragraph := range strings.SplitSeq(string(content), "\n\n") {
		fields := map[string]string{}
		for line := range strings.Lines(paragraph) {
			key, value, _ := strings.Cut(line, ":")
			fields[key] = strings.TrimSpace(value)
		}
		status := fields["Status"] // apk has none
		if fields[name] != "" && (status == "" || strings.HasSuffix(status, " installed")) {
			fmt.Println(fields[name], fields[version])
		}
	}
	return err
}

func scan(tree fs.FS) error {
	return fs.WalkDir(tree, ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case strings.HasSuffix(path, "var/lib/dpkg/status"):
			return packages(tree, path, "Package", "Version")
		case strings.HasSuffix(path, "lib/apk/db/installed"):
			return packages(tree, path, "P", "V")
		case entry.Name() == "rpmdb.sqlite", entry.Name() == "Packages.db", strings.HasSuffix(path, "lib/rpm/Packages"):
			fmt.Println("a database of rpm:", path)
		}
		return nil
	})
}

func main() {
	for _, location := range os.Args[1:] {
		volume, err := ironmap.Open(location)
		if err != nil {
			log.Fatal(err)
		}
		if err := scan(volume.FS()); err != nil {
			log.Fatal(location, ": ", err)
		}
		if err := volume.Close(); err != nil {
			log.Fatal(err)
		}
	}
}
