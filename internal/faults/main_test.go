//go:build linux

package faults_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var (
	long   = flag.Bool("long", false, "run the long schedule, and measure recovery")
	seed   = flag.Uint64("seed", 0, "the schedule's seed; 0 makes one up")
	length = flag.Duration("for", 10*time.Minute, "how long the long schedule is")
)

// What TestMain makes once for all tests.
var (
	pythonBinary   = os.Getenv("PINBOARD_TEST_PYTHON") // "" leaves the Python workers out
	pinboardBinary string
	goworkerBinary string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (status int) {
	dir, err := os.MkdirTemp("", "pinboard-faults-programs-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "make a directory for the programs:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path, err := overlay(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "make clocks that can be stepped:", err)
		return 1
	}
	cmd := exec.Command("go", "build", "-race", "-pgo=off", "-buildvcs=false", "-overlay", path, "-o", dir+string(os.PathSeparator),
		"./cmd/pinboard", "./internal/faults/testdata/goworker")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the programs under test:", err)
		return 1
	}
	pinboardBinary, goworkerBinary = filepath.Join(dir, "pinboard"), filepath.Join(dir, "goworker")
	status = m.Run()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, "goroutines outlived the tests:", err)
		return cmp.Or(status, 1)
	}
	return status
}
