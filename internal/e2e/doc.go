// Package e2e holds the end-to-end tests: the built cmd/pinboard, on memory and
// on a real Redis, with workers on the real Python client ("pinned") and on
// package worker, all of them processes of their own that are called, drained,
// killed and frozen.
//
// The tests need a Python with the packages of testdata/requirements.txt; the
// environment variable PINBOARD_TEST_PYTHON names it.
package e2e
