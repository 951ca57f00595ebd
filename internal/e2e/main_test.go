package e2e_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

const noPython = `PINBOARD_TEST_PYTHON is not set: the end-to-end tests run the real Python client.
Make an environment for it at the root of the repository (./.ci/test does the same), and name it:

	python3 -m venv .cache/venv
	.cache/venv/bin/pip install -r internal/e2e/testdata/requirements.txt
	export PINBOARD_TEST_PYTHON=$PWD/.cache/venv/bin/python
`

// What TestMain makes once for all tests.
var (
	pythonBinary   string
	pinboardBinary string
	goworkerBinary string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (status int) {
	pythonBinary = os.Getenv("PINBOARD_TEST_PYTHON")
	if pythonBinary == "" {
		fmt.Fprint(os.Stderr, noPython)
		return 1
	}
	dir, err := os.MkdirTemp("", "pinboard-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "make a directory for the programs:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := build(dir); err != nil {
		fmt.Fprintln(os.Stderr, "build the programs under test:", err)
		return 1
	}
	// Tests wait more than they work: for leases to end, for Python to start.
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set("4")
	}
	status = m.Run()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, "goroutines outlived the tests:", err)
		return cmp.Or(status, 1)
	}
	return status
}

// build makes the server and the Go worker, with the race detector in them.
func build(dir string) error {
	cmd := exec.Command("go", "build", "-race", "-pgo=off", "-buildvcs=false", "-o", dir+string(os.PathSeparator), "./cmd/pinboard", "./internal/e2e/testdata/goworker")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	pinboardBinary = filepath.Join(dir, "pinboard")
	goworkerBinary = filepath.Join(dir, "goworker")
	return cmd.Run()
}
