package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/leak"
)

const (
	// waitLimit is when a condition that was waited for counts as never coming.
	waitLimit = 30 * time.Second
	waitEvery = 20 * time.Millisecond
)

// await calls try until it is ok, and returns its value.
func await[T any](t *testing.T, what string, try func() (T, bool)) T {
	t.Helper()
	limit := time.NewTimer(waitLimit)
	defer limit.Stop()
	tick := time.NewTicker(waitEvery)
	defer tick.Stop()
	for {
		value, ok := try()
		if ok {
			return value
		}
		select {
		case <-tick.C:
		case <-limit.C:
			require.FailNow(t, "waited in vain for: "+what, "last seen: %+v", value)
		}
	}
}

// awaitTrue is await for a bare condition.
func awaitTrue(t *testing.T, what string, try func() bool) {
	t.Helper()
	await(t, what, func() (bool, bool) { ok := try(); return ok, ok })
}

// record is a line of a process that is a JSON object: an event of a worker, or
// a line of pinboard's log.
type record struct {
	Event, Msg string
	ID         string
	Addr, URL  string
	Count      int
}

// process is a running program. Its output is kept, and shown when the test
// fails; it is killed, and waited for, when the test ends.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed once it has ended

	mu      sync.Mutex
	output  bytes.Buffer
	records []record
}

// start runs a program with the given variables added to the environment.
func start(t *testing.T, name string, env []string, program string, args ...string) *process {
	t.Helper()
	p := &process{name: name, done: make(chan struct{})}
	p.cmd = exec.Command(program, args...)
	p.cmd.Env = append(withoutOurs(os.Environ()), env...)
	p.cmd.Stdout, p.cmd.Stderr = leak.Tee(&lines{to: p}), leak.Tee(&lines{to: p})
	p.cmd.WaitDelay = 5 * time.Second
	endWithParent(p.cmd)
	require.NoError(t, p.cmd.Start(), "start %s", name)
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("output of %s (pid %d, %v):\n%s", name, p.pid(), p.cmd.ProcessState, p.text())
		}
	})
	return p
}

// withoutOurs leaves out what would configure a program under test.
func withoutOurs(environment []string) []string {
	return slices.DeleteFunc(environment, func(v string) bool {
		return strings.HasPrefix(v, "PINBOARD_") || strings.HasPrefix(v, "REDIS_URL=") || strings.HasPrefix(v, "PORT=")
	})
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) signal(t *testing.T, s os.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(s), "signal %s", p.name)
	if s == freezes {
		awaitTrue(t, p.name+" stands still", func() bool { return p.stands(t) })
	}
}

// stands reports whether all threads of the process are stopped. The signal is
// taken by one of them, and the others run on until that one runs.
func (p *process) stands(t *testing.T) bool {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.pid()))
	require.NoError(t, err)
	require.NotEmpty(t, tasks)
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			return false // it has just ended
		}
		// PID (NAME) STATE …, where the name may have anything in it.
		_, rest, ok := strings.Cut(string(text[strings.LastIndexByte(string(text), ')'):]), ") ")
		if !ok || rest[0] != 'T' {
			return false
		}
	}
	return true
}

// ended reports whether the process is gone.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill ends the process as kill -9 does, and waits until it is gone. It may be
// stopped, or gone already.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// awaitEnd waits until the process has ended and returns its exit status, -1
// if a signal ended it.
func (p *process) awaitEnd(t *testing.T) int {
	t.Helper()
	awaitTrue(t, p.name+" ends", p.ended)
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// matching returns the records so far that match.
func (p *process) matching(match func(record) bool) (found []record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.records {
		if match(r) {
			found = append(found, r)
		}
	}
	return found
}

// await waits for the first record that matches.
func (p *process) await(t *testing.T, what string, match func(record) bool) record {
	t.Helper()
	return await(t, p.name+" tells: "+what, func() (record, bool) {
		found := p.matching(match)
		if len(found) == 0 {
			require.False(t, p.ended(), "%s has ended", p.name)
			return record{}, false
		}
		return found[0], true
	})
}

// lines keeps what one stream of a process brings, and reads it line by line.
type lines struct {
	to   *process
	rest []byte
}

func (l *lines) Write(chunk []byte) (int, error) {
	l.to.mu.Lock()
	defer l.to.mu.Unlock()
	l.to.output.Write(chunk)
	l.rest = append(l.rest, chunk...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(chunk), nil
		}
		l.rest = rest
		var r record
		if json.Unmarshal(line, &r) == nil {
			l.to.records = append(l.to.records, r)
		}
	}
}
