//go:build unix

package main

import (
	"syscall"
	"time"
)

// writeProfile has a server that profiles itself write what it has.
const writeProfile = syscall.SIGUSR1

// processorTime returns how many seconds of processors' time the process has used.
func processorTime() float64 {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used) // fails for no one's own
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
}
