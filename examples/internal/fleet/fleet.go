// Package fleet starts what the examples need to be tried with one command: a
// pinboard on the in-process store and two workers, all in this process. A real
// deployment runs cmd/pinboard, or embeds the library in a server of its own,
// and each worker is a process; examples/quickstart shows the same in one file.
package fleet

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/pinboard-go/pinboard"
	"github.com/pinboard-go/pinboard/passport"
	"github.com/pinboard-go/pinboard/worker"
)

// Lease is how long a worker's lease runs. The usual 15 s would be a long wait
// at the start: a store without memory places nothing for one lease.
const Lease = 2 * time.Second

const token = "example"

// document lets the workers in, and everybody to the namespaces of the examples.
const document = `{
  "providers": [{"type": "staticToken", "id": "pinboard", "keys": [{
    "name": "deployment", "token": "` + token + `", "scopes": ["pinboard:worker"],
    "claims": {"pinboard": {"namespaces": ["*"], "allowedBackendHosts": ["127.0.0.1"]}}}]}],
  "namespaces": {"*": {"allow": "anonymous"}}
}`

// Options say what a fleet runs. Namespace and Instances are required.
type Options struct {
	// Namespace is what the workers host.
	Namespace string
	// Instances returns the constructor of the named worker's instances.
	Instances func(worker string) worker.Constructor
	// Listen is the address of pinboard. Default: a free port of 127.0.0.1.
	Listen string
	// Configure may change the options of the named worker. Default: nothing.
	Configure func(name string, opts *worker.Options)
}

// Fleet is a pinboard and its workers. Its methods are safe for concurrent use,
// but for Stop.
type Fleet struct {
	// URL is where pinboard answers.
	URL string

	ctx  context.Context // ends with the fleet, without a drain
	opts Options
	stop func() // pinboard

	mu      sync.Mutex
	workers map[string]*running
}

// running is a worker with its HTTP server.
type running struct {
	worker *worker.Worker
	stop   func() // releases what it holds, deregisters, ends; may be called twice
}

// Names of the workers.
var names = []string{"worker-1", "worker-2"}

// Start returns a fleet whose workers are registered. The first request for an
// id has still to wait: see AwaitAnswer. The caller stops the fleet.
func Start(ctx context.Context, opts Options) (*Fleet, error) {
	if opts.Listen == "" {
		opts.Listen = "127.0.0.1:0"
	}
	// The end of ctx must not take the workers' goodbye from them: Stop ends them.
	f := &Fleet{ctx: context.WithoutCancel(ctx), opts: opts, workers: map[string]*running{}}
	if err := f.startPinboard(); err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := f.startWorker(ctx, name); err != nil {
			f.Stop()
			return nil, err
		}
	}
	return f, nil
}

func (f *Fleet) startPinboard() error {
	pass, err := passport.Parse([]byte(document), func(string) (string, bool) { return "", false })
	if err != nil {
		return err
	}
	pb, err := pinboard.New(pinboard.Options{Passport: pass, Store: pinboard.MemoryStore(), LeaseTTL: Lease})
	if err != nil {
		return err
	}
	listener, err := listen(f.ctx, f.opts.Listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: pb, ReadHeaderTimeout: 5 * time.Second}
	server.RegisterOnShutdown(func() { _ = pb.Close() })
	go func() { _ = server.Serve(listener) }()
	f.URL = "http://" + listener.Addr().String()
	f.stop = func() {
		ctx, cancel := context.WithTimeout(f.ctx, 5*time.Second)
		defer cancel()
		_ = server.Shutdown(ctx)
		_ = pb.Shutdown(ctx)
	}
	return nil
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
}

// startWorker returns when the worker is registered; ctx bounds the wait.
func (f *Fleet) startWorker(ctx context.Context, name string) error {
	listener, err := listen(ctx, "127.0.0.1:0")
	if err != nil {
		return err
	}
	opts := worker.Options{
		PinboardURL:       f.URL,
		Token:             token,
		AdvertiseURL:      "http://" + listener.Addr().String(),
		HeartbeatInterval: Lease / 5, // to go with the short lease
		LeaseBuffer:       Lease / 3,
	}
	if f.opts.Configure != nil {
		f.opts.Configure(name, &opts)
	}
	w, err := worker.New(opts)
	if err == nil {
		err = w.Host(f.opts.Namespace, f.opts.Instances(name))
	}
	if err != nil {
		_ = listener.Close()
		return err
	}
	life, cancel := context.WithCancel(f.ctx)
	var done sync.WaitGroup
	done.Go(func() { _ = w.Serve(life, listener) })
	stop := func() { cancel(); done.Wait() }
	if err := w.AwaitReady(ctx); err != nil {
		stop()
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.workers[name] = &running{worker: w, stop: stop}
	return nil
}

// StopWorker ends a worker in good order: it releases its ids, which are placed
// on the other one from then on.
func (f *Fleet) StopWorker(name string) {
	f.mu.Lock()
	w := f.workers[name]
	delete(f.workers, name)
	f.mu.Unlock()
	if w != nil {
		w.stop()
	}
}

// RestartOnEnter restarts the worker with the most instances for each line of
// in, so that one can watch them move. It returns when ctx ends, and reads no
// line after it; an in that ends earlier only means that nobody is there to
// press a key.
func (f *Fleet) RestartOnEnter(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := make(chan struct{})
	go func() { // ends with in: a read from a terminal can't be interrupted
		for s := bufio.NewScanner(in); s.Scan(); {
			select {
			case lines <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case <-lines:
		case <-ctx.Done():
			return nil
		}
		name := f.busiest()
		fmt.Fprintln(out, name, "restarts")
		f.StopWorker(name)
		fmt.Fprintln(out, name, "has released what it held: the next call places it anew")
		switch err := f.startWorker(ctx, name); {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("restart %s: %w", name, err)
		}
	}
}

func (f *Fleet) busiest() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	best, most := "", -1
	for _, name := range names {
		if w := f.workers[name]; w != nil {
			if n := len(w.worker.Stats().Instances); n > most {
				best, most = name, n
			}
		}
	}
	return best
}

// AwaitAnswer asks for a path of pinboard's until the answer is not a 503, and
// obeys Retry-After meanwhile.
func (f *Fleet) AwaitAnswer(ctx context.Context, path string) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.URL+path, nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusServiceUnavailable {
			return nil
		}
		seconds, _ := strconv.Atoi(res.Header.Get("Retry-After"))
		select {
		case <-time.After(time.Duration(max(1, seconds)) * time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Stop ends the workers, all at once, and then pinboard.
func (f *Fleet) Stop() {
	var done sync.WaitGroup
	for _, name := range names {
		done.Go(func() { f.StopWorker(name) })
	}
	done.Wait()
	f.stop()
}
