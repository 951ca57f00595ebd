package worker_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/pinboard-go/pinboard/worker"
)

// newCounter makes the handler of one instance. What it holds lives as long as
// the instance, and there is no other one with its id.
func newCounter(inst *worker.Instance) (http.Handler, error) {
	var count atomic.Int64
	inst.OnClose(func(context.Context) error {
		fmt.Printf("%s ends with %d\n", inst.ID(), count.Load())
		return nil
	})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /increment", func(w http.ResponseWriter, r *http.Request) {
		who := "nobody known"
		if caller, ok := worker.CallerFrom(r.Context()); ok && caller.Account != nil {
			who = caller.Account.Subject
		}
		fmt.Fprintf(w, "%s: %d, by %s", inst.ID(), count.Add(1), who)
	})
	return mux, nil
}

// A service hosts counters, one for each id. Outside of an example it would take
// its options from the environment and call ListenAndServe.
func Example() {
	pinboard := startPinboard()
	defer pinboard.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}

	w, err := worker.New(worker.Options{
		PinboardURL:  pinboard.URL,
		Token:        "a-token",
		AdvertiseURL: "http://" + listener.Addr().String(),
	})
	if err != nil {
		panic(err)
	}
	if err := w.Host("/counters", newCounter); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Serve(ctx, listener) }()
	if err := w.AwaitReady(ctx); err != nil {
		panic(err)
	}

	for _, id := range []string{"alice", "bob", "alice"} {
		res, err := http.Post(pinboard.URL+"/counters/"+id+"/increment", "", nil)
		if err != nil {
			panic(err)
		}
		text, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		fmt.Println(string(text))
	}

	w.Stats() // and more, for operators
	cancel()  // drains, releases, deregisters
	fmt.Println("served:", <-ended)
	http.DefaultClient.CloseIdleConnections()

	// Unordered output:
	// alice: 1, by ada
	// bob: 1, by ada
	// alice: 2, by ada
	// alice ends with 2
	// bob ends with 1
	// served: <nil>
}
