package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.uber.org/zap"
)

const (
	// readHeaderTimeout bounds how long a connection may take over a
	// request's header.
	readHeaderTimeout = 10 * time.Second
	// keepAlive is longer than pinboard keeps idle connections to workers, so
	// that none is closed under a request.
	keepAlive = 2 * time.Minute
	// connectionsTimeout is how long the server waits for connections that no
	// instance holds.
	connectionsTimeout = 5 * time.Second
	// shutdownTimeout is what is left for the shutdown after the drain.
	shutdownTimeout = 10 * time.Second
)

// ListenAndServe serves on a TCP address, such as ":8000", until ctx ends or
// the process gets a SIGTERM or an interrupt (Ctrl-C); a second one ends the
// process at once. An empty address is a free port, which the log tells. See
// Serve for the rest.
func (w *Worker) ListenAndServe(ctx context.Context, address string) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("worker: listen: %w", err)
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	context.AfterFunc(ctx, stop)
	return w.Serve(ctx, listener)
}

// Serve serves on a listener until ctx ends, registers as soon as it accepts
// connections, and closes it. When ctx ends, the worker drains for at most
// Options.DrainDeadline while it goes on to serve live instances, shuts down,
// and only then closes the server. Serve returns nil if all that went well. Give
// the process DrainDeadline + CloseTimeout + 25 s to end before it is killed.
//
// A worker that a higher epoch has superseded ends its instances and is not ready any
// more (/_pinned/ready), but Serve does not return for it: the process would be restarted
// by whatever runs it, and wait for its turn for ever. Whoever has put the newer
// deployment in place ends the older one, as it does with one that was not superseded; a
// program that wants to end by itself asks Superseded, or waits for LeaseContext to end
// with the cause ErrSuperseded, and ends ctx.
//
// The error is the listener's if that failed, which ends everything without a
// drain, or Shutdown's. An ErrNotDeregistered means that nothing else went wrong: it is
// no fault of the worker's, and no reason to end with a failure. A worker in a server of
// your own is what the example of Start shows.
func (w *Worker) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: http.HandlerFunc(w.serveOwn), ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: keepAlive,
		ErrorLog: zap.NewStdLog(w.opts.Logger),
	}
	broken := make(chan error, 1)
	go func() { broken <- server.Serve(listener) }()
	if err := w.Start(); err != nil {
		_ = server.Close()
		<-broken
		return err
	}
	w.opts.Logger.Info("serving", zap.Stringer("addr", listener.Addr()))
	var failure error
	select {
	case failure = <-broken:
		failure = fmt.Errorf("worker: serve: %w", failure)
		broken <- nil
	case <-ctx.Done():
	}
	ending := context.WithoutCancel(ctx)
	if failure == nil {
		w.drainFor(ending)
	}
	ending, cancel := context.WithTimeout(ending, shutdownTimeout)
	defer cancel()
	err := w.Shutdown(ending)
	closeServer(server)
	<-broken
	if failure != nil && errors.Is(err, ErrNotDeregistered) {
		return failure // the log tells the rest
	}
	return errors.Join(failure, err)
}

func (w *Worker) drainFor(ctx context.Context) {
	// What is aborted at the deadline still has its hooks and its release.
	ctx, cancel := context.WithTimeout(ctx, later(later(w.opts.DrainDeadline, w.opts.CloseTimeout), releaseWait))
	defer cancel()
	if err := w.Drain(ctx, w.opts.DrainDeadline); err != nil {
		w.opts.Logger.Warn("drain incomplete", zap.Error(err))
	}
}

// closeServer lets answers under way be written out, but not for long.
func closeServer(server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), connectionsTimeout)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		_ = server.Close()
	}
}
