package ironmap

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
)

// An Error is the failure of a call of the library. The methods of a file system return it as the Err of a *fs.PathError.
type Error struct {
	// Errno is the number of the error.
	Errno syscall.Errno
	// Kind is the name of the kind of failure in the Rust library, such as "NotFound" or "Corrupt".
	Kind string
	// Message is one line that names the cause and its place. It does not repeat the Path of the *fs.PathError.
	Message string
}

func (e *Error) Error() string {
	if e.Message == "" {
		return e.Errno.Error()
	}
	return e.Message
}

// Unwrap returns the Errno, which matches fs.ErrNotExist, fs.ErrExist, fs.ErrPermission and errors.ErrUnsupported.
func (e *Error) Unwrap() error { return e.Errno }

// Is matches EINVAL with fs.ErrInvalid and EBADF with fs.ErrClosed, because the Errno does not match them.
func (e *Error) Is(target error) bool {
	return e.Errno == syscall.EINVAL && target == fs.ErrInvalid || e.Errno == syscall.EBADF && target == fs.ErrClosed
}

// pathError returns a *fs.PathError. The message of an *Error then does not begin with the path.
func pathError(op, name, path string, err error) error {
	var failed *Error
	if errors.As(err, &failed) {
		failed.Message = strings.TrimPrefix(failed.Message, path+": ")
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}
