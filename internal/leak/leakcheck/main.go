// Command leakcheck runs the tests with package leak at work and looks whether a
// secret was shown:
//
//	leakcheck run DIR [go test's arguments]
//	leakcheck scan DIR
//
// Several runs with one DIR add up. run prints a line for each package, and of a
// test that fails all that it printed; what the others print is in DIR/output.
// scan then fails with exit status 1 if a secret is anywhere in DIR, and says
// which process handled it and where it was shown, but not the secret.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	err := errors.New("usage: leakcheck run DIR [arguments of go test] | leakcheck scan DIR")
	if len(os.Args) > 2 {
		switch os.Args[1] {
		case "run":
			err = run(os.Args[2], os.Args[3:])
		case "scan":
			err = scan(os.Args[2], os.Stdout)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "leakcheck:", err)
		os.Exit(1)
	}
}

// kinds are the directories that package leak writes to, and that of the output.
var kinds = []string{"secrets", "said", "log", "printed", "files", "output"}

func run(dir string, args []string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for _, kind := range kinds {
		if err := os.MkdirAll(filepath.Join(dir, kind), 0o700); err != nil {
			return err
		}
	}
	out, err := os.CreateTemp(filepath.Join(dir, "output"), "")
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	// Tests build programs, which shall be built alike.
	flags := strings.TrimSpace(os.Getenv("GOFLAGS") + " -tags=leakcheck")
	cmd.Env = append(os.Environ(), "GOFLAGS="+flags, "LEAKCHECK_DIR="+dir)
	cmd.Stderr = io.MultiWriter(os.Stderr, out)
	said, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := summarise(said, out, os.Stdout)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	return readErr
}

// event is a line of go test -json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// A report of the race detector lies between two lines of raceRule. The output of
// which test it falls into is chance.
const (
	raceRule  = "==================\n"
	raceTitle = "WARNING: DATA RACE\n"
)

// summarise writes everything that tests print to all, and to short a line for
// each package, what failed tests have printed, and what the race detector has found.
func summarise(in io.Reader, all, short io.Writer) error {
	kept := map[string]*strings.Builder{} // by test; "" of a package is what no test has printed
	racing := false
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Action == "" {
			e = event{Action: "build-output", Output: lines.Text() + "\n"}
		}
		name := e.Package + " " + e.Test
		switch e.Action {
		case "output":
			_, _ = io.WriteString(all, e.Output)
			if racing = e.Output == raceTitle || racing && e.Output != raceRule; racing {
				_, _ = io.WriteString(short, e.Output)
				continue
			}
			if kept[name] == nil {
				kept[name] = &strings.Builder{}
			}
			kept[name].WriteString(e.Output)
		case "build-output":
			_, _ = io.WriteString(all, e.Output)
			_, _ = io.WriteString(short, e.Output)
		case "pass", "skip", "fail":
			if text := kept[name]; e.Action == "fail" && text != nil {
				_, _ = io.WriteString(short, text.String())
			}
			delete(kept, name)
			if e.Test == "" && e.Action != "skip" {
				fmt.Fprintf(short, "%s\t%s\t%.1fs\n", e.Action, e.Package, e.Elapsed)
			}
		}
	}
	return lines.Err()
}
