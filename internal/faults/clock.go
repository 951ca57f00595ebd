//go:build unix

package faults

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now reads CLOCK_MONOTONIC, which all processes of one machine share and
// nobody sets. time.Now can't be compared between processes: its monotonic
// reading has another origin in each, and its wall clock may be stepped.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // not on a system that has the clock
	}
	return time.Duration(ts.Nano())
}
