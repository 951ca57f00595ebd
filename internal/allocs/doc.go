// Package allocs counts allocations, for tests that hold how many something may
// make. There is no such count in builds with the race detector, which has
// sync.Pool forget at random, and none in those with the tag leakcheck, which
// write: there the package is empty. A test that counts is built without both
// ("//go:build !race && !leakcheck") and has "Allocat" in its name, by which
// .ci/test runs it.
package allocs
