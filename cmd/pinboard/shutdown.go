package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard"
)

// shutdownTimeout is how long a shutdown takes at most, Environment.ShutdownDelay
// included.
const shutdownTimeout = 20 * time.Second

// interrupts returns two contexts: one that ends with the first signal to stop, and one
// that ends with the second.
func interrupts() (stop, cut context.Context) {
	told := make(chan os.Signal, 4)
	hangup := !signal.Ignored(syscall.SIGHUP) // as by nohup
	signal.Notify(told, os.Interrupt, syscall.SIGTERM)
	if hangup {
		signal.Notify(told, syscall.SIGHUP)
	}
	stop, first := context.WithCancel(context.Background())
	cut, second := context.WithCancelCause(context.Background())
	go func() {
		<-told
		first()
		for <-told == syscall.SIGHUP { // a terminal and its shell both send it
		}
		second(errors.New("told to stop a second time"))
	}()
	return stop, cut
}

// leaving tells clients, once it has begun, that each answer is the last one on its
// connection. To http.Server.Shutdown a connection is idle while the next request lies in
// its socket: that request would be lost.
type leaving struct {
	next  http.Handler
	begun atomic.Bool
}

// ServeHTTP implements http.Handler.
func (l *leaving) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if l.begun.Load() && r.ProtoMajor == 1 { // HTTP/2 has a message for it, which Shutdown sends
		w.Header().Set("Connection", "close")
	}
	l.next.ServeHTTP(w, r)
}

// shutDown goes on serving for the delay, and then lets requests end until ctx does. The
// port is closed: nobody who is told to connect anew does so here.
func shutDown(ctx context.Context, delay time.Duration, limited *connections, last *leaving, server *http.Server, pb *pinboard.Pinboard, log *zap.Logger) {
	ctx, cancel := context.WithTimeoutCause(ctx, shutdownTimeout, errors.New("the time for a shutdown is over"))
	defer cancel()
	last.begun.Store(true)
	log.Info("shutting down")
	select {
	case <-time.After(delay):
	case <-ctx.Done():
	}
	// What is left after the time is cut: a bounded stop is still a good one.
	if server.Shutdown(ctx) != nil {
		left, _ := limited.quota.Use() // those without a request are closed
		log.Warn("requests are cut", zap.NamedError("why", context.Cause(ctx)), zap.Int("connections", left))
		_ = pb.Shutdown(ctx)
	} else if pb.Shutdown(ctx) != nil {
		log.Warn("streams are cut", zap.NamedError("why", context.Cause(ctx)))
	}
}
