//go:build !unix

package sock

import "errors"

// Read, Write and Quiet are not to be had here, where no connection is taken for a
// socket.

func Read(int, []byte) (int, error)  { return 0, errors.ErrUnsupported }
func Write(int, []byte) (int, error) { return 0, errors.ErrUnsupported }
func Quiet(int) bool                 { return false }
