// Command quickstart shows a whole fleet in one process: a pinboard on the
// in-process store, two workers, and a client whose calls to one id always
// reach the same instance.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pinboard-go/pinboard"
	"github.com/pinboard-go/pinboard/passport"
	"github.com/pinboard-go/pinboard/worker"
)

const token = "quickstart"

// document lets the workers in, and everybody to what they host.
const document = `{
  "providers": [{"type": "staticToken", "id": "pinboard", "keys": [{
    "name": "deployment", "token": "` + token + `",
    "scopes": ["pinboard:worker", "pinboard:operator"],
    "claims": {"pinboard": {"namespaces": ["*"], "allowedBackendHosts": ["127.0.0.1"]}}}]}],
  "namespaces": {"*": {"allow": "anonymous"}}
}`

// The usual lease is 15 s, and what a worker with default settings needs. A short one
// keeps the first wait short, as long as all workers are our own.
const (
	usualLease = 15 * time.Second
	shortLease = 2 * time.Second
)

func main() {
	serve := flag.Bool("serve", false, "go on serving until interrupted, workers of your own too")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *serve); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, serve bool) error {
	lease := shortLease
	if serve {
		lease = usualLease
	}
	base, shutdown, err := startPinboard(ctx, lease)
	if err != nil {
		return err
	}
	defer shutdown()
	fmt.Fprintln(out, "pinboard listens on", base)
	if serve {
		fmt.Fprintln(out, "a worker of your own, of any namespace, in another shell:")
		fmt.Fprintf(out, "  export PINBOARD_URL=%s PINBOARD_TOKEN=%s\n", base, token)
		fmt.Fprintln(out, "  LISTEN=127.0.0.1:8001 ADVERTISE_URL=http://127.0.0.1:8001 go run ./examples/counter")
	}

	workers := map[string]*running{}
	for _, name := range []string{"worker-1", "worker-2"} {
		w, err := startWorker(ctx, base, name, lease)
		if err != nil {
			return err
		}
		defer w.stop()
		workers[name] = w
	}
	fmt.Fprintln(out, "worker-1 and worker-2 have registered for /counters")
	fmt.Fprintf(out, "waiting: a store without memory places nothing for one lease (%v)\n", lease)

	var owner string
	for _, id := range []string{"alice", "alice", "alice", "bob"} {
		answer, err := increment(ctx, out, base, id)
		if err != nil {
			return err
		}
		if id == "alice" {
			owner = answer.HeldBy
		}
	}
	fmt.Fprintf(out, "%s shuts down: it releases alice first\n", owner)
	workers[owner].stop()
	if _, err := increment(ctx, out, base, "alice"); err != nil {
		return err
	}
	if serve {
		fmt.Fprintf(out, "serving: curl -X POST %s/counters/alice/increment\n", base)
		<-ctx.Done()
	}
	return nil
}

func startPinboard(ctx context.Context, lease time.Duration) (base string, shutdown func(), err error) {
	pass, err := passport.Parse([]byte(document), os.LookupEnv)
	if err != nil {
		return "", nil, err
	}
	pb, err := pinboard.New(pinboard.Options{Passport: pass, Store: pinboard.MemoryStore(), LeaseTTL: lease})
	if err != nil {
		return "", nil, err
	}
	listener, err := listen(ctx)
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: pb, ReadHeaderTimeout: 5 * time.Second}
	server.RegisterOnShutdown(func() { _ = pb.Close() })
	go func() { _ = server.Serve(listener) }()
	return "http://" + listener.Addr().String(), func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(bounded)
		_ = pb.Shutdown(bounded)
	}, nil
}

func listen(ctx context.Context) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
}

// running is a worker with its HTTP server.
type running struct {
	stop func() // releases what it holds, deregisters, ends; may be called twice
}

func startWorker(ctx context.Context, base, name string, lease time.Duration) (*running, error) {
	listener, err := listen(ctx)
	if err != nil {
		return nil, err
	}
	w, err := worker.New(worker.Options{
		PinboardURL:       base,
		Token:             token,
		AdvertiseURL:      "http://" + listener.Addr().String(),
		HeartbeatInterval: lease / 5, // 3 s and 5 s of the usual lease, and less of a short one
		LeaseBuffer:       lease / 3,
	})
	if err != nil {
		return nil, err
	}
	if err := w.Host("/counters", newCounter(name)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() { _ = w.Serve(ctx, listener) })
	if err := w.AwaitReady(ctx); err != nil {
		cancel()
		done.Wait()
		return nil, err
	}
	return &running{stop: func() { cancel(); done.Wait() }}, nil
}

// newCounter makes the instances of the namespace: one for each live id.
func newCounter(workerName string) worker.Constructor {
	return func(in *worker.Instance) (http.Handler, error) {
		var count atomic.Int64
		mux := http.NewServeMux()
		mux.HandleFunc("POST /increment", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(counted{ID: in.ID(), Count: count.Add(1), HeldBy: workerName})
		})
		return mux, nil
	}
}

type counted struct {
	ID     string `json:"id"`
	Count  int64  `json:"count"`
	HeldBy string `json:"heldBy"`
}

// increment calls an instance, and tries again when it is told to.
func increment(ctx context.Context, out io.Writer, base, id string) (counted, error) {
	path := "/counters/" + id + "/increment"
	for {
		answer, wait, err := call(ctx, base+path)
		if err != nil {
			return counted{}, err
		}
		if wait == 0 {
			fmt.Fprintf(out, "%-30s -> %s is %d, held by %s\n", "POST "+path, answer.ID, answer.Count, answer.HeldBy)
			return answer, nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return counted{}, ctx.Err()
		}
	}
}

// call posts once; wait is what a 503 asks for.
func call(ctx context.Context, url string) (answer counted, wait time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return counted{}, 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return counted{}, 0, err
	}
	defer func() { _ = res.Body.Close() }()
	switch res.StatusCode {
	case http.StatusOK:
		err = json.NewDecoder(res.Body).Decode(&answer)
		return answer, 0, err
	case http.StatusServiceUnavailable:
		seconds, err := strconv.Atoi(res.Header.Get("Retry-After"))
		return counted{}, time.Duration(max(1, seconds)) * time.Second, err
	}
	return counted{}, 0, fmt.Errorf("%s answered %s", url, res.Status)
}
