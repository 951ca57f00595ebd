package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/prometheus/procfs"
)

const (
	// envBare, in its environment, makes a process of this program the server that
	// a node is compared with; it has the address to listen on.
	envBare = "PINBOARD_BENCH_BARE"
	// lead is what passes before a round, and span is how long one is, in intervals
	// of heartbeats.
	lead, span   = 1, 3
	beatToken    = "bench-token-of-twenty-characters"
	beatPassport = `{"providers": [{"type": "staticToken", "id": "pinboard", "keys": [{
		"name": "bench", "token": "` + beatToken + `", "scopes": ["pinboard:worker"],
		"claims": {"pinboard": {"namespaces": ["*"], "allowedBackendHosts": ["*"]}}}]}]}`
)

// fleetSizes are with how many workers heartbeats are measured.
var fleetSizes = []int{1000, 5000}

// heartbeats measures what a node and its Redis do while workers beat, beside a
// server that reads the same heartbeats and answers, and does nothing else. Each is
// a process of its own.
func heartbeats(ctx context.Context, s settings) error {
	if addr := os.Getenv(envBare); addr != "" {
		return serveBare(ctx, addr)
	}
	f, err := startFleet()
	if err != nil {
		return err
	}
	defer f.stop()
	node, err := startNode(ctx, "redis://"+f.server.Addr())
	if err != nil {
		return err
	}
	defer node.stop()
	bare, err := startBare(ctx)
	if err != nil {
		return err
	}
	defer bare.stop()
	b, err := startBeaters(node.url, bare.url)
	if err != nil {
		return err
	}
	defer b.stop()
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "workers\tbeats/s\tnode, cores\tRedis, cores\tnode, µs a beat\tRedis, µs\tbare, µs\tnode to bare\tnode, MB\tfailed")
	for _, n := range fleetSizes {
		if err := b.grow(ctx, n); err != nil {
			return err
		}
		for range s.rounds {
			if err := f.round(ctx, t, b, node, bare); err != nil {
				return err
			}
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if why := b.why.Load(); why != nil {
		fmt.Println("the last failure:", *why)
	}
	return nil
}

// round measures for some intervals, and prints a line.
func (f *fleet) round(ctx context.Context, w io.Writer, b *beaters, node, bare *server) error {
	if err := pause(ctx, lead*beats); err != nil {
		return err
	}
	read := func() (all [4]float64, err error) {
		redis, err := usage(f.server.Pid())
		nodes, err2 := usage(node.pid())
		bares, err3 := usage(bare.pid())
		return [4]float64{nodes, redis, bares, float64(b.made.Load())}, errors.Join(err, err2, err3)
	}
	failed := b.failed.Load()
	before, err := read()
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := pause(ctx, span*beats); err != nil {
		return err
	}
	after, err := read()
	if err != nil {
		return err
	}
	took := time.Since(begun).Seconds()
	for i := range after {
		after[i] -= before[i]
	}
	n := after[3]
	process, err := procfs.NewProc(node.pid())
	if err != nil {
		return err
	}
	stat, err := process.Stat()
	fmt.Fprintf(w, "%d\t%.0f\t%.2f\t%.2f\t%.0f\t%.0f\t%.0f\t%.1f\t%.0f\t%d\n", len(b.all), n/took, after[0]/took, after[1]/took,
		1e6*after[0]/n, 1e6*after[1]/n, 1e6*after[2]/n, after[0]/after[2], float64(stat.ResidentMemory())/1e6, b.failed.Load()-failed)
	return err
}

// pause waits, unless the run is over.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// usage returns how many seconds a process has run.
func usage(pid int) (seconds float64, err error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	stat, err := process.Stat()
	return stat.CPUTime(), err
}

// server is a process that serves HTTP.
type server struct {
	url string
	cmd *exec.Cmd
	dir string // removed at its end
}

func (s *server) pid() int { return s.cmd.Process.Pid }

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
	_ = os.RemoveAll(s.dir)
}

// startNode builds the standalone server, and starts it.
func startNode(ctx context.Context, redisURL string) (*server, error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "pinboard")
	if err := buildServer(ctx, path); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return launch(ctx, dir, path, func(port int) []string {
		return []string{"PORT=" + strconv.Itoa(port), "REDIS_URL=" + redisURL, "PINBOARD_PASSPORT=" + beatPassport}
	})
}

// buildServer builds the standalone server.
func buildServer(ctx context.Context, path string, flags ...string) error {
	args := append([]string{"build", "-o", path}, flags...)
	if out, err := exec.CommandContext(ctx, "go", append(args, serverPackage)...).CombinedOutput(); err != nil {
		return fmt.Errorf("build the server: %w\n%s", err, out)
	}
	return nil
}

// startBare starts this program as the server that a node is compared with.
func startBare(ctx context.Context) (*server, error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return launch(ctx, dir, path, func(port int) []string {
		return []string{envBare + "=127.0.0.1:" + strconv.Itoa(port)}
	}, "-part", "heartbeats")
}

func serveBare(ctx context.Context, addr string) error {
	s := &http.Server{Addr: addr, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"expiresInMs":15000,"draining":false}`)
	})}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// launch starts a server on a free port, and waits until it answers.
func launch(ctx context.Context, dir, path string, env func(port int) []string, args ...string) (*server, error) {
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	port := probe.Addr().(*net.TCPAddr).Port // it is a TCP listener
	_ = probe.Close()
	s := &server{url: "http://127.0.0.1:" + strconv.Itoa(port), dir: dir, cmd: exec.Command(path, args...)}
	s.cmd.Env = append(os.Environ(), env(port)...)
	said := &strings.Builder{}
	s.cmd.Stderr = said
	if err := s.cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	for range 500 {
		res, err := http.Get(s.url + "/healthz")
		if err == nil {
			_ = res.Body.Close()
			return s, nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			break
		}
	}
	s.stop()
	return nil, fmt.Errorf("%s does not answer: %s", path, said)
}
