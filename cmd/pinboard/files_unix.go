//go:build unix

package main

import "syscall"

// openFiles returns how many files the process may have open.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > manyFiles {
		return manyFiles
	}
	return int(limit.Cur)
}
