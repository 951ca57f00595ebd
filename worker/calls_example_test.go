package worker_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/pinboard-go/pinboard/worker"
)

// newMember makes the handler of one member, who can greet others, wherever in
// the fleet they live.
func newMember(inst *worker.Instance) (http.Handler, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, r *http.Request) {
		from := "a client"
		if caller, ok := worker.CallerFrom(r.Context()); ok && caller.Instance != nil {
			from = caller.Instance.ID
		}
		fmt.Fprintf(w, "%s: hello, %s", inst.ID(), from)
	})
	mux.HandleFunc("GET /greet/{id}", func(w http.ResponseWriter, r *http.Request) {
		// The request's context ends the call with the request.
		call, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "/members/"+r.PathValue("id")+"/hello", nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		res, err := inst.Client().Do(call)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer res.Body.Close()
		w.WriteHeader(res.StatusCode)
		_, _ = io.Copy(w, res.Body)
	})
	return mux, nil
}

// One instance calls another by its path.
func ExampleInstance_Client() {
	pinboard := startPinboard()
	defer pinboard.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	w, err := worker.New(worker.Options{
		PinboardURL: pinboard.URL, Token: "a-token", AdvertiseURL: "http://" + listener.Addr().String(),
	})
	if err != nil {
		panic(err)
	}
	if err := w.Host("/members", newMember); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Serve(ctx, listener) }()
	if err := w.AwaitReady(ctx); err != nil {
		panic(err)
	}
	client := &http.Client{Transport: &http.Transport{}}
	for _, path := range []string{"/members/bob/hello", "/members/alice/greet/bob"} {
		res, err := client.Get(pinboard.URL + path)
		if err != nil {
			panic(err)
		}
		text, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		fmt.Println(string(text))
	}
	cancel()
	<-ended
	client.CloseIdleConnections()

	// Output:
	// bob: hello, a client
	// bob: hello, alice
}
