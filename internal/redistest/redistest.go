package redistest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// Options say how a server runs. The zero Options are a server on a unix socket
// that keeps nothing on disk.
type Options struct {
	// TCP lets the server listen on a free port of the loopback address, which
	// it keeps over a Restart, too.
	TCP bool
	// AOF writes every command to disk before it is answered, so that a
	// Restart loses nothing. Default: a Restart loses everything.
	AOF bool
	// Args are further arguments of redis-server.
	Args []string
	// Config is the text of a configuration file, which the server may rewrite,
	// as a Sentinel does. Default: there is none.
	Config string
	// Env is what the server's environment has besides the test's own.
	Env []string
}

// startWithin is how long a server may take to answer its first command.
const startWithin = 20 * time.Second

// Server is one redis-server.
type Server struct {
	opts Options
	dir  string
	port int

	mu      sync.Mutex
	process *process
}

// New starts a server that ends with the test.
func New(t testing.TB, opts Options) *Server {
	t.Helper()
	s, err := Start(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Start starts a server, for use in a TestMain: whoever starts it calls Stop.
func Start(opts Options) (*Server, error) {
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	s := &Server{opts: opts, dir: dir}
	// A port that was free may be taken a moment later.
	for range 5 {
		if opts.TCP {
			if s.port, err = freePort(); err != nil {
				break
			}
		}
		if err = s.start(); err == nil {
			return s, nil
		}
	}
	return nil, errors.Join(err, os.RemoveAll(dir))
}

// busOffset is how far above a node's port the one is by which the nodes of a
// cluster talk to each other.
const busOffset = 10000

// freePort returns a port that is free, as is the one of its bus.
func freePort() (int, error) {
	for {
		one, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, fmt.Errorf("redistest: %w", err)
		}
		port := one.Addr().(*net.TCPAddr).Port // it is a TCP listener
		_ = one.Close()
		if port += busOffset; port > 65535 {
			continue
		}
		if bus, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			_ = bus.Close()
			return port - busOffset, nil
		}
	}
}

func (s *Server) start() error {
	args := []string{
		"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir, "--save", "",
		"--unixsocket", s.socket(), "--logfile", s.log(), "--appendonly", "no",
	}
	if s.opts.AOF {
		args = append(args, "--appendonly", "yes", "--appendfsync", "always")
	}
	if s.opts.Config != "" {
		if err := s.configure(); err != nil {
			return err
		}
		args = append([]string{s.config()}, args...)
	}
	cmd := exec.Command("redis-server", append(args, s.opts.Args...)...)
	cmd.Env = append(os.Environ(), s.opts.Env...)
	p, err := run(cmd)
	if err != nil {
		return fmt.Errorf("redistest: redis-server is needed: %w", err)
	}
	s.process = p
	if err := s.answers(); err != nil {
		text, _ := os.ReadFile(s.log())
		s.process.kill()
		return fmt.Errorf("redistest: redis-server did not start: %w\n%s", err, text)
	}
	return nil
}

func (s *Server) socket() string { return filepath.Join(s.dir, "socket") }
func (s *Server) log() string    { return filepath.Join(s.dir, "log") }
func (s *Server) config() string { return filepath.Join(s.dir, "config") }

// configure writes the configuration file, unless the server has one from before
// a Restart.
func (s *Server) configure() error {
	if _, err := os.Stat(s.config()); err == nil {
		return nil
	}
	if err := os.WriteFile(s.config(), []byte(s.opts.Config), 0o600); err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	return nil
}

// answers waits until the server does, its data loaded.
func (s *Server) answers() error {
	deadline := time.After(startWithin)
	for {
		if s.ping() {
			return nil
		}
		select {
		case <-s.process.exited:
			return errors.New("it ended")
		case <-deadline:
			return errors.New("no answer")
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (s *Server) ping() bool {
	conn, err := net.Dial("unix", s.socket())
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	answer := make([]byte, 7)
	n, _ := conn.Read(answer)
	return string(answer[:n]) == "+PONG\r\n"
}

// Addr is host and port, of a server with Options.TCP.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Pid is the process that the server is now.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process.cmd.Process.Pid
}

// ClientOption connects to the server by its unix socket.
func (s *Server) ClientOption() rueidis.ClientOption {
	return rueidis.ClientOption{
		InitAddress:       []string{"unix.socket:0"},
		ForceSingleClient: true,
		DialCtxFn: func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, "unix", s.socket())
		},
	}
}

// Client returns a client that is closed when the test ends.
func (s *Server) Client(t testing.TB) rueidis.Client {
	t.Helper()
	return NewClient(t, s.ClientOption())
}

// NewClient returns a client that is closed when the test ends.
func NewClient(t testing.TB, opts rueidis.ClientOption) rueidis.Client {
	t.Helper()
	client, err := rueidis.NewClient(opts)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	t.Cleanup(client.Close)
	return client
}

// Freeze stops the server's process where it is: connections stay open, and
// nothing is answered until Thaw.
func (s *Server) Freeze() { s.signal(freeze) }

// Thaw lets a frozen server go on.
func (s *Server) Thaw() { s.signal(thaw) }

func (s *Server) signal(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.process.cmd.Process.Signal(sig)
}

// Kill ends the server at once, as a crash would.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process.kill()
}

// Restart kills the server, if it runs, and starts it again at the same address.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process.kill()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
}

// Stop ends the server and removes its files. Stopping twice does nothing.
func (s *Server) Stop() {
	s.Kill()
	_ = os.RemoveAll(s.dir)
}

// process is a child that does not outlive this process.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

// run starts a command. Where the system can, it kills the child when the thread
// ends that started it; so one waits for the child without ever doing anything
// else.
func run(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = childAttributes()
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(p.exited)
		}
	}()
	return p, <-started
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}
