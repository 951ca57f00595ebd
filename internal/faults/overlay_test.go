//go:build linux

package faults_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// overlay writes what has `go build -overlay` make programs whose wall clock can
// be stepped while they run: a copy of package time in which Now adds a step to
// its wall clock and leaves its monotonic one alone. No preloaded library could
// do that, for Go reads the clock without the C library.
func overlay(dir string) (path string, err error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	standard := filepath.Join(string(bytes.TrimSpace(root)), "src", "time")
	text, err := os.ReadFile(filepath.Join(standard, "time.go"))
	if err != nil {
		return "", err
	}
	const reads = "\tsec, nsec, mono := runtimeNow()\n"
	if bytes.Count(text, []byte(reads)) != 1 {
		return "", errors.New("time.Now is not what is to be changed: see overlay_test.go")
	}
	text = bytes.Replace(text, []byte(reads), []byte(reads+"\tsec += wallStep()\n"), 1)
	changed := filepath.Join(dir, "time.go")
	if err := os.WriteFile(changed, text, 0o600); err != nil {
		return "", err
	}
	added, err := filepath.Abs(filepath.Join("testdata", "wallclock.go.txt"))
	if err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(standard, "time.go"):      changed,
		filepath.Join(standard, "wallclock.go"): added,
	}})
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, list, 0o600)
}

// wallClock is a process's wall clock.
type wallClock struct{ path string }

// newWallClock makes a clock that is right until it is stepped.
func newWallClock(t *testing.T, dir, name string) *wallClock {
	t.Helper()
	c := &wallClock{path: filepath.Join(dir, name+".clock")}
	c.step(t, 0)
	return c
}

// step sets by how much the clock is off, in whole seconds.
func (c *wallClock) step(t *testing.T, by time.Duration) {
	t.Helper()
	file, err := os.OpenFile(c.path, os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	text := binary.NativeEndian.AppendUint64(nil, uint64(by/time.Second))
	_, err = file.WriteAt(text, 0)
	require.NoError(t, err)
}
