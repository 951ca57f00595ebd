// Command ledger keeps accounts. Each is one live instance, which holds the
// balance in memory and saves each change to Redis, fenced by its placement
// epoch: an owner that was replaced without noticing can't overwrite what its
// successor has written. REDIS_URL says where the accounts are.
//
// With REDIS_URL alone, it starts a pinboard and two workers in this process and
// prints what to call. With PINBOARD_URL set it is only a worker, which takes
// PINBOARD_TOKEN, ADVERTISE_URL and LISTEN from the environment, too.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/rueidis"
	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/examples/internal/fleet"
	"github.com/pinboard-go/pinboard/worker"
)

const namespace = "/accounts"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "ledger:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	option, err := rueidis.ParseURL(os.Getenv("REDIS_URL"))
	if err != nil {
		return errors.New("REDIS_URL must be like redis://127.0.0.1:6379") // err may hold a password
	}
	client, err := rueidis.NewClient(option)
	if err != nil {
		return fmt.Errorf("connect to the Redis of REDIS_URL: %w", err)
	}
	defer client.Close()
	if os.Getenv("PINBOARD_URL") != "" {
		return runWorker(ctx, newStore(client))
	}
	return runAll(ctx, newStore(client), os.Stdin, os.Stdout)
}

// runWorker is what a deployment runs, in as many processes as it likes.
func runWorker(ctx context.Context, s *store) error {
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
	if err := w.Host(namespace, newAccount(s, fmt.Sprintf("%s/%d", host, os.Getpid()))); err != nil {
		return err
	}
	err = w.ListenAndServe(ctx, os.Getenv("LISTEN"))
	if errors.Is(err, worker.ErrNotDeregistered) { // that one is in the log, and no failure
		return nil
	}
	return err
}

// runAll is a deployment of its own, in one process.
func runAll(ctx context.Context, s *store, in io.Reader, out io.Writer) error {
	instances := func(name string) worker.Constructor { return newAccount(s, name) }
	f, err := fleet.Start(ctx, fleet.Options{Namespace: namespace, Instances: instances})
	if err != nil {
		return err
	}
	defer f.Stop()
	fmt.Fprintf(out, "starting: a store without memory places nothing for one lease (%v)\n", fleet.Lease)
	if err := f.AwaitAnswer(ctx, namespace+"/alice/"); err != nil {
		return err
	}
	fmt.Fprintf(out, "curl -d amount=10 %s%s/alice/deposit\n", f.URL, namespace)
	fmt.Fprintf(out, "curl -d amount=3 %s%s/alice/withdraw\n", f.URL, namespace)
	fmt.Fprintln(out, "press Enter to restart the worker that holds the account: the balance stays; Ctrl-C ends")
	return f.RestartOnEnter(ctx, in, out)
}
