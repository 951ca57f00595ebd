// Command bench measures pinboard against yardsticks that run beside it:
//
//	go run ./internal/bench -part bulk
//	go run ./internal/bench -part heartbeats
//	go run ./internal/bench -part placements
//	go run ./internal/bench -part requests
//	go run ./internal/bench -part routes
//	go run ./internal/bench -part scale
//	go run ./internal/bench -part streams
//	go run ./internal/bench -part worker
//	go run ./internal/bench -part profile
//
// A rate on its own says as much of the machine, and of what else runs on it, as
// of pinboard; so what counts is a ratio of two rates that were measured in one
// run, in rounds that take turns, by the medians. Everything listens on the
// loopback address and ends with the run.
//
// Each part is a file, and in the list of parts below. The last one measures nothing:
// it makes the profile that the server is built by.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
)

// settings are the flags that parts share.
type settings struct {
	rounds int
	rows   int // of the large directory
	calls  int // a round, of each kind

	streams int // held at a time
}

// parts are what can be measured, by name.
var parts = map[string]func(context.Context, settings) error{
	"bulk":       bulk,
	"heartbeats": heartbeats,
	"placements": placements,
	"profile":    profile,
	"requests":   requests,
	"routes":     routes,
	"scale":      scale,
	"streams":    streams,
	"worker":     workers,
}

func main() {
	if kind := os.Getenv(proxyVariable); kind != "" {
		fmt.Fprintln(os.Stderr, "bench:", beProxy(kind, os.Getenv(workerVariable)))
		os.Exit(1)
	}
	var s settings
	names := strings.Join(slices.Sorted(maps.Keys(parts)), ", ")
	part := flag.String("part", "", "what to measure: "+names)
	flag.IntVar(&s.rounds, "rounds", 7, "how many rounds of each kind")
	flag.IntVar(&s.rows, "rows", 1_000_000, "rows of the large directory")
	flag.IntVar(&s.calls, "calls", 100_000, "calls a round, of each kind")
	flag.IntVar(&s.streams, "streams", 2000, "streams that are held at a time; each needs two files, of this process and of the proxy")
	flag.Parse()
	measure, ok := parts[*part]
	if !ok || flag.NArg() > 0 || min(s.rounds, s.rows, s.calls, s.streams) < 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := measure(ctx, s)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
