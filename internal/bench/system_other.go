//go:build !unix

package main

import "syscall"

// writeProfile reaches nobody here.
const writeProfile = syscall.Signal(0)

func processorTime() float64 { panic("bench: this system does not say what processors' time was used") }
