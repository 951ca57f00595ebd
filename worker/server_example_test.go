package worker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/pinboard-go/pinboard/worker"
)

// serve runs a worker in a server of the process's own, beside other routes,
// until ctx ends: what Serve does for a server that is the worker's alone.
func serve(ctx context.Context, w *worker.Worker, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("/pins/", w) // the base path of the advertise URL
	mux.Handle("/ready", w.ReadyHandler())
	// No ReadTimeout and no WriteTimeout, which would cut streams; pinboard
	// closes idle connections after 4 s, before the server does.
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	if err := w.Start(); err != nil { // now that the worker can be reached
		return errors.Join(err, server.Close())
	}
	var err error
	select {
	case err = <-failed: // nobody can be served any more: no drain
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err == nil {
		err = w.Drain(end, 30*time.Second) // live instances are served meanwhile
	}
	err = errors.Join(err, w.Shutdown(end))
	return errors.Join(err, server.Shutdown(end)) // last: until then pinboard may call
}

// A worker that shares its server with other routes.
func ExampleWorker_Start() {
	pinboard := startPinboard()
	defer pinboard.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	w, err := worker.New(worker.Options{
		PinboardURL: pinboard.URL, Token: "a-token",
		AdvertiseURL: "http://" + listener.Addr().String() + "/pins",
	})
	if err != nil {
		panic(err)
	}
	if err := w.Host("/counters", newCounter); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, w, listener) }()
	if err := w.AwaitReady(ctx); err != nil {
		panic(err)
	}
	res, err := http.Post(pinboard.URL+"/counters/alice/increment", "", nil)
	if err != nil {
		panic(err)
	}
	text, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	fmt.Println(string(text))
	cancel()
	fmt.Println("served:", <-ended)
	http.DefaultClient.CloseIdleConnections()
	// Output:
	// alice: 1, by ada
	// alice ends with 1
	// served: <nil>
}
