// Command embedded is a server of one's own with a pinboard below /pins: a route
// beside it, a hook, and the end in the right order.
package main

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/pinboard-go/pinboard"
	"github.com/redis/rueidis"
	"go.uber.org/zap"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logger, err := zap.NewProduction()
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", os.Getenv("LISTEN"))
	if err != nil {
		log.Fatal(err)
	}
	if err := serve(ctx, listener, logger, os.LookupEnv); err != nil {
		log.Fatal(err)
	}
}

// serve serves until ctx ends, and then for as long as requests need to end.
func serve(ctx context.Context, listener net.Listener, logger *zap.Logger, lookup func(string) (string, bool)) error {
	env, err := pinboard.ReadEnvironment(lookup) // PINBOARD_PASSPORT, REDIS_URL, …
	if err != nil {
		return err
	}
	opts := env.Options
	opts.Logger = logger
	if env.Redis != nil { // not memory:
		opts.Redis, err = rueidis.NewClient(*env.Redis)
		if err != nil {
			return err
		}
		defer opts.Redis.Close() // it is ours
	}
	opts.Hooks.Placed = func(_ context.Context, e pinboard.PlacementEvent) {
		logger.Info("placed", zap.String("id", e.ID), zap.String("worker", e.ClientID), zap.Int64("epoch", e.Epoch))
	}
	pb, err := pinboard.New(opts)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/pins/", http.StripPrefix("/pins", pb)) // workers have PINBOARD_URL=http://…/pins
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello\n")) })
	// Plain requests would obey ReadTimeout and WriteTimeout; streams and WebSockets don't.
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 75 * time.Second}
	server.RegisterOnShutdown(func() { _ = pb.Close() }) // ends streams, which Shutdown would wait for
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	err = errors.Join(err, server.Shutdown(end))
	return errors.Join(err, pb.Shutdown(end)) // WebSockets, and what hooks are still to be told
}
