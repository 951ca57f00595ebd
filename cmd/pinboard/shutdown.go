package main

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard"
)

// shutdownTimeout is how long a shutdown takes at most, Environment.ShutdownDelay
// included.
const shutdownTimeout = 20 * time.Second

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
func shutDown(ctx context.Context, delay time.Duration, last *leaving, server *http.Server, pb *pinboard.Pinboard, log *zap.Logger) {
	ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	last.begun.Store(true)
	log.Info("shutting down")
	select {
	case <-time.After(delay):
	case <-ctx.Done():
	}
	// What is left after the time is cut: a bounded stop is still a good one.
	if err := errors.Join(server.Shutdown(ctx), pb.Shutdown(ctx)); err != nil {
		log.Warn("requests were cut", zap.Error(err))
	}
}
