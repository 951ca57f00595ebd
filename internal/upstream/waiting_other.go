//go:build !linux

package upstream

// waiting returns 0: the kernel moves nothing by itself here.
func (*descriptor) waiting() int64 { return 0 }
