// Command goworker is the application of the end-to-end tests on package
// worker. It has the environment, the routes and the output of app.py beside it,
// but for what the Python client alone can do: instances that end while their
// placement is kept. For this program alone are APP_GATE, with what waits for it,
// and APP_CLOSING: how many seconds an instance takes to close.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "goworker:", err)
		os.Exit(1)
	}
}

// tell prints an event.
func tell(event string, fields map[string]any) {
	line := map[string]any{"event": event}
	maps.Copy(line, fields)
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
}

func run(ctx context.Context) error {
	log, err := zap.NewDevelopment()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	url := "http://" + listener.Addr().String()
	c := &control{}
	opts, err := options(url, c, log)
	if err != nil {
		return err
	}
	w, err := worker.New(opts)
	if err != nil {
		return err
	}
	for namespace := range strings.SplitSeq(os.Getenv("APP_NAMESPACES"), ",") {
		if err := w.Host(namespace, newRoom); err != nil {
			return err
		}
	}
	server := &http.Server{Handler: c.beside(w), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	tell("ready", map[string]any{"url": url})
	if err := w.Start(); err != nil {
		return err
	}
	<-ctx.Done()
	return end(w, server)
}

// options reads the environment.
func options(url string, c *control, log *zap.Logger) (worker.Options, error) {
	headroom, err := strconv.ParseFloat(os.Getenv("APP_HEADROOM"), 64)
	c.setHeadroom(headroom)
	epoch, err2 := strconv.ParseInt(os.Getenv("APP_EPOCH"), 10, 64)
	return worker.Options{
		PinboardURL: os.Getenv("APP_PINBOARD_URL"), Token: worker.Token(os.Getenv("APP_TOKEN")), AdvertiseURL: url,
		Headroom:          c.report,
		HeartbeatInterval: seconds("APP_HEARTBEAT"), LeaseBuffer: seconds("APP_BUFFER"),
		Hostname: os.Getenv("APP_HOSTNAME"), Env: os.Getenv("APP_ENV"), Takeover: worker.Takeover(os.Getenv("APP_TAKEOVER")),
		Epoch:  epoch,
		Logger: log,
	}, errors.Join(err, err2)
}

func seconds(variable string) time.Duration {
	number, err := strconv.ParseFloat(os.Getenv(variable), 64)
	if err != nil {
		panic(err)
	}
	return time.Duration(number * float64(time.Second))
}

// end drains if the environment says so, and shuts down.
func end(w *worker.Worker, server *http.Server) error {
	ctx := context.Background()
	if os.Getenv("APP_DRAIN") != "" {
		if err := w.Drain(ctx, seconds("APP_DRAIN")); err != nil {
			return err
		}
	}
	return errors.Join(w.Shutdown(ctx), server.Shutdown(ctx))
}

// control is what a test may ask the process directly, beside pinboard.
type control struct {
	secret atomic.Value

	mu       sync.Mutex
	headroom float64
	reports  int // of this headroom, one with each heartbeat
}

func (c *control) report() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reports++
	return c.headroom
}

func (c *control) setHeadroom(headroom float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headroom, c.reports = headroom, 0
}

func (c *control) reported() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reports
}

// beside serves the control routes, and all else by w. The worker never shows
// its secret; pinboard's probes tell it.
func (c *control) beside(w http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /control/headroom", func(rw http.ResponseWriter, r *http.Request) {
		var headroom float64
		if err := json.NewDecoder(r.Body).Decode(&headroom); err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		c.setHeadroom(headroom)
		answer(rw, map[string]any{})
	})
	mux.HandleFunc("GET /control/reports", func(rw http.ResponseWriter, _ *http.Request) { answer(rw, c.reported()) })
	mux.HandleFunc("GET /control/secret", func(rw http.ResponseWriter, _ *http.Request) { answer(rw, c.secret.Load()) })
	mux.HandleFunc("/", func(rw http.ResponseWriter, r *http.Request) {
		if secret := r.Header.Get("Pinboard-Proxy-Secret"); secret != "" {
			c.secret.CompareAndSwap(nil, secret)
		}
		w.ServeHTTP(rw, r)
	})
	return mux
}

func answer(rw http.ResponseWriter, body any) {
	rw.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(rw).Encode(body); err != nil {
		fmt.Fprintln(os.Stderr, "goworker: answer:", err)
	}
}
