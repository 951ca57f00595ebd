// Command chat is a chat room over WebSocket, with a page to try it in a
// browser. Each room is one live instance, which holds its members and its last
// messages in memory: whoever opens /chat/lobby/ anywhere reaches the same one.
//
// Run alone, it starts a pinboard and two workers in this process and prints
// what to open. With PINBOARD_URL set it is only a worker, which takes
// PINBOARD_TOKEN, ADVERTISE_URL and LISTEN from the environment, too.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/examples/internal/fleet"
	"github.com/pinboard-go/pinboard/worker"
)

const namespace = "/chat"

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "where pinboard listens, unless PINBOARD_URL is set")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run := func() error { return runAll(ctx, *listen, os.Stdin, os.Stdout) }
	if os.Getenv("PINBOARD_URL") != "" {
		run = func() error { return runWorker(ctx) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "chat:", err)
		os.Exit(1)
	}
}

// runWorker is what a deployment runs, in as many processes as it likes.
func runWorker(ctx context.Context) error {
	logger, err := zap.NewProduction()
	if err != nil {
		return err
	}
	w, err := worker.New(worker.Options{Logger: logger})
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	if err := w.Host(namespace, newRoom(fmt.Sprintf("%s/%d", host, os.Getpid()))); err != nil {
		return err
	}
	err = w.ListenAndServe(ctx, os.Getenv("LISTEN"))
	if errors.Is(err, worker.ErrNotDeregistered) { // that one is in the log, and no failure
		return nil
	}
	return err
}

// runAll is a deployment of its own, in one process.
func runAll(ctx context.Context, listen string, in io.Reader, out io.Writer) error {
	f, err := fleet.Start(ctx, fleet.Options{Namespace: namespace, Instances: newRoom, Listen: listen})
	if err != nil {
		return err
	}
	defer f.Stop()
	fmt.Fprintf(out, "starting: a store without memory places nothing for one lease (%v)\n", fleet.Lease)
	if err := f.AwaitAnswer(ctx, namespace+"/lobby/"); err != nil {
		return err
	}
	fmt.Fprintf(out, "open %s%s/lobby/ in two windows; any other name is another room\n", f.URL, namespace)
	fmt.Fprintln(out, "press Enter to restart the worker that holds it, Ctrl-C to end")
	return f.RestartOnEnter(ctx, in, out)
}
