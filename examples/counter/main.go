// Command counter is a worker of the namespace /counters. It takes PINBOARD_URL,
// PINBOARD_TOKEN and ADVERTISE_URL from the environment, and listens on LISTEN.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"sync/atomic"

	"github.com/pinboard-go/pinboard/worker"
	"go.uber.org/zap"
)

func main() {
	logger, _ := zap.NewProduction()
	w, err := worker.New(worker.Options{Logger: logger}) // PINBOARD_URL, PINBOARD_TOKEN, ADVERTISE_URL
	if err != nil {
		log.Fatal(err)
	}
	if err := w.Host("/counters", newCounter); err != nil {
		log.Fatal(err)
	}
	// Registers, serves, drains on SIGTERM or Ctrl-C, releases its ids, deregisters.
	err = w.ListenAndServe(context.Background(), os.Getenv("LISTEN"))
	if err != nil && !errors.Is(err, worker.ErrNotDeregistered) { // that one is in the log, and no failure
		log.Fatal(err)
	}
}

// newCounter makes the instance of one id: nobody else in the fleet has it.
func newCounter(in *worker.Instance) (http.Handler, error) {
	var n atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("POST /increment", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, in.ID(), n.Add(1))
	})
	return mux, nil
}
