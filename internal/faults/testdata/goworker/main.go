// Command goworker is the application of the fault tests on package worker. It
// has the environment, the routes and the journal of worker.py beside it:
//
//	APP_PROCESS        the process's name in the record
//	APP_JOURNAL        the journal's file
//	APP_NAMESPACES     what it hosts, separated by commas
//	APP_PINBOARD_URL, APP_TOKEN, APP_ADVERTISE_URL
//	APP_HEARTBEAT, APP_BUFFER, APP_LEASE, APP_IDLE, APP_DRAIN, APP_TICK   seconds
//	APP_LAWLESS        if not empty, the process takes every lease for a long one
//
// It serves on the listener that it was started with, as file 3.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/faults"
	"github.com/pinboard-go/pinboard/worker"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "goworker:", err)
		os.Exit(1)
	}
}

func run() error {
	log, err := zap.NewDevelopment()
	if err != nil {
		return err
	}
	listener, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	journal, err := faults.OpenJournal(os.Getenv("APP_JOURNAL"), os.Getenv("APP_PROCESS"))
	if err != nil {
		return err
	}
	namespaces := strings.Split(os.Getenv("APP_NAMESPACES"), ",")
	rec := &recorder{journal: journal, namespaces: namespaces, lawless: os.Getenv("APP_LAWLESS") != ""}
	w, err := worker.New(worker.Options{
		PinboardURL: os.Getenv("APP_PINBOARD_URL"), Token: worker.Token(os.Getenv("APP_TOKEN")),
		AdvertiseURL: os.Getenv("APP_ADVERTISE_URL"), Transport: rec,
		HeartbeatInterval: seconds("APP_HEARTBEAT"), LeaseBuffer: seconds("APP_BUFFER"), LeaseTTL: seconds("APP_LEASE"),
		IdleTimeout: seconds("APP_IDLE"), DrainDeadline: seconds("APP_DRAIN"), Logger: log,
	})
	if err != nil {
		return err
	}
	rooms := &rooms{recorder: rec, process: os.Getenv("APP_PROCESS"), tick: seconds("APP_TICK")}
	for _, namespace := range namespaces {
		if err := w.Host(namespace, rooms.open); err != nil {
			return err
		}
	}
	return serve(w, rec, listener)
}

// serve does what Worker.Serve does, with the recorder in between.
func serve(w *worker.Worker, rec *recorder, listener net.Listener) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	server := &http.Server{Handler: rec.before(w), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	if err := w.Start(); err != nil {
		return err
	}
	<-ctx.Done()
	drain := seconds("APP_DRAIN")
	bounded, cancel := context.WithTimeout(context.Background(), drain+20*time.Second)
	defer cancel()
	err := errors.Join(w.Drain(bounded, drain), w.Shutdown(bounded))
	// What is on its way here is still to be refused, not lost.
	select {
	case <-time.After(time.Second):
	case <-bounded.Done():
	}
	return errors.Join(err, server.Shutdown(bounded))
}

func seconds(variable string) time.Duration {
	number, err := strconv.ParseFloat(os.Getenv(variable), 64)
	if err != nil {
		panic(err)
	}
	return time.Duration(number * float64(time.Second))
}

// die ends a process that can't keep its record.
func die(err error) {
	fmt.Fprintln(os.Stderr, "goworker:", err)
	os.Exit(1)
}
