//go:build linux

package faults_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// waitLimit is when what was waited for counts as never coming. It is no
// promise of pinboard's: the machine may be slow.
const waitLimit = 60 * time.Second

// await waits for a condition.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, waitLimit, 20*time.Millisecond, "waited in vain: %s", what)
}

// process is a running program. Its output goes to a file.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed once it has ended
	out  *output
}

// start runs a program that ends with the test at the latest. files are its
// files from 3 on. printed, if not nil, is called whenever it has printed
// something.
func start(t *testing.T, dir, name string, env []string, files []*os.File, printed func(*output), program string, args ...string) *process {
	t.Helper()
	p := &process{name: name, done: make(chan struct{}), out: &output{printed: printed}}
	file, err := os.Create(filepath.Join(dir, name+".log"))
	require.NoError(t, err)
	p.out.file = file
	p.cmd = exec.Command(program, args...)
	p.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PINBOARD_") || strings.HasPrefix(v, "REDIS_URL=") || strings.HasPrefix(v, "PORT=")
	}), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.ExtraFiles = files
	p.cmd.WaitDelay = 5 * time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The system ends the child when the thread ends that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
			_ = file.Close()
			close(p.done)
		}
	}()
	require.NoError(t, <-started, "start %s", name)
	t.Cleanup(p.kill)
	return p
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// signal sends a signal; a process that has ended gets none.
func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// kill ends the process as kill -9 does, and waits until it is gone.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// endsWithin reports whether the process ends by itself in that time.
func (p *process) endsWithin(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
		return false
	}
}

// output keeps what a process prints, in a file, too.
type output struct {
	file    *os.File
	printed func(*output)
	mu      sync.Mutex
	text    bytes.Buffer
}

// Write takes what was printed.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	o.text.Write(p)
	o.mu.Unlock()
	if o.printed != nil {
		o.printed(o)
	}
	return o.file.Write(p)
}

// between returns what stands between two texts, and false if it is not there.
func (o *output) between(before, after string) (string, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, rest, _ := bytes.Cut(o.text.Bytes(), []byte(before))
	found, _, ok := bytes.Cut(rest, []byte(after))
	return string(found), ok
}

func (o *output) contains(text string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Contains(o.text.Bytes(), []byte(text))
}
