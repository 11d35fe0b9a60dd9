package ironmap

// #include <stdint.h>
// #include <ironmap.h>
import "C"

import "runtime/cgo"

// The function is in a separate file, because cgo copies the preamble of a file that exports a function into two C files.
//
//export ironmapFinding
func ironmapFinding(list C.uintptr_t, finding *C.struct_ironmap_finding) C.int {
	report := cgo.Handle(list).Value().(*Report)
	report.Findings = append(report.Findings, Finding{
		Severity: Severity(finding.severity), Inode: uint64(finding.inode), Block: uint64(finding.block),
		Kind: C.GoString(finding.kind), Message: C.GoString(finding.message),
	})
	return 0
}
