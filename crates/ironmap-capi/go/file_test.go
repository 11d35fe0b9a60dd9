package ironmap

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"testing"
)

// pair opens a file of the odd tree in the volume, and its source.
func pair(t testing.TB, v *Volume, name string) (*File, *os.File) {
	file, err := v.FS().Open(name)
	must(t, err)
	source, err := os.Open(filepath.Join(odd.root(), name))
	must(t, err)
	t.Cleanup(func() { source.Close() })
	return file.(*File), source
}

// ReadAt, Read and Seek with random arguments return what they return for a file of the kernel.
func TestRandomCalls(t *testing.T) {
	onEach(t, func(t *testing.T, format string) {
		v, r := odd.volume(t, format), random(t)
		for _, name := range []string{"data", "holes", "fragments", "file"} {
			file, source := pair(t, v, name)
			info, err := source.Stat()
			must(t, err)
			for range 250 {
				got, want := make([]byte, 1+r.IntN(1<<(1+r.IntN(18)))), []byte(nil)
				want = append(want, got...)
				pos, whence := r.Int64N(info.Size()+5000)-100, r.IntN(3)
				var n, m int
				var gotErr, wantErr error
				switch call := r.IntN(3); call {
				case 0:
					n, gotErr = file.ReadAt(got, pos)
					m, wantErr = source.ReadAt(want, pos)
				case 1:
					n, gotErr = io.ReadFull(file, got)
					m, wantErr = io.ReadFull(source, want)
				case 2:
					if whence == io.SeekEnd {
						pos -= info.Size()
					}
					at, err := file.Seek(pos, whence)
					real, realErr := source.Seek(pos, whence)
					n, m, gotErr, wantErr = int(at), int(real), err, realErr
				}
				same := gotErr == wantErr || gotErr != nil && wantErr != nil && gotErr != io.EOF && wantErr != io.EOF
				if n != m || !same || !bytes.Equal(got, want) {
					t.Fatalf("%s at %d: %d, %v instead of %d, %v", name, pos, n, gotErr, m, wantErr)
				}
			}
		}
	})
}

// A read that is longer than the largest request returns all bytes.
func TestLongRead(t *testing.T) {
	onEach(t, func(t *testing.T, format string) {
		file, source := pair(t, odd.volume(t, format), "data")
		want, err := io.ReadAll(source)
		must(t, err)
		got := make([]byte, len(want)+10)
		n, err := file.ReadAt(got, 0)
		if n != len(want) || err != io.EOF || !bytes.Equal(got[:n], want) {
			t.Errorf("%d bytes, %v", n, err)
		}
		copied, err := io.ReadAll(file)
		must(t, err)
		if !bytes.Equal(copied, want) {
			t.Error("the copy differs")
		}
	})
}

// Many goroutines read a file at the same time. Their number may be larger than the number of threads that Go permits.
func TestConcurrentReadAt(t *testing.T) {
	defer debug.SetMaxThreads(debug.SetMaxThreads(callsInFlight + 100))
	onEach(t, func(t *testing.T, format string) {
		v, r := odd.volume(t, format), random(t)
		file, source := pair(t, v, "data")
		content, err := io.ReadAll(source)
		must(t, err)
		var all sync.WaitGroup
		for range 2000 {
			pos := r.IntN(len(content) - 8192)
			all.Go(func() {
				got := make([]byte, 8192)
				if _, err := file.ReadAt(got, int64(pos)); err != nil || !bytes.Equal(got, content[pos:pos+8192]) {
					t.Errorf("at %d: %v", pos, err)
				}
			})
		}
		all.Wait()
	})
}

// Errors of goroutines that use a volume at the same time are those of the call of each goroutine.
func TestConcurrentErrors(t *testing.T) {
	onEach(t, func(t *testing.T, format string) {
		tree := odd.volume(t, format).FS()
		var all sync.WaitGroup
		seen := map[string]bool{}
		for _, name := range []string{"file/below", "nothing", "loop", "dir/nothing"} {
			_, alone := fs.Stat(tree, name)
			seen[alone.Error()] = true
			all.Go(func() {
				for range 300 {
					if _, err := fs.Stat(tree, name); err == nil || err.Error() != alone.Error() {
						t.Errorf("%s: %v instead of %v", name, err, alone)
						return
					}
				}
			})
		}
		all.Wait()
		if len(seen) != 4 {
			t.Errorf("the errors are not different: %v", seen)
		}
	})
}
