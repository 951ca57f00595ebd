package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"text/tabwriter"
	"time"
)

const (
	// sockets is how many WebSockets echo at a time.
	sockets = 64
	// warming is how many streams a proxy has had before its memory is read.
	warming = 20
	// settling is how long streams are left alone before they are measured, and
	// watching how long they are.
	settling, watching = 2 * time.Second, 4 * time.Second
	// largeMessage is in bytes.
	largeMessage = 64 << 10
)

// streamed is one figure of one proxy.
type streamed struct {
	name   string
	unit   string
	wanted string
	values map[string][]float64 // by kind of proxy
}

// streams measures what idle streams take of a proxy's memory, and what events and
// messages take of its time.
func streams(ctx context.Context, s settings) error {
	w, err := startStreamWorker(ctx)
	if err != nil {
		return err
	}
	defer w.stop()
	figures := []*streamed{
		{name: "idle event stream", unit: "KB", wanted: "12 KB"},
		{name: "event", unit: "µs of CPU", wanted: "1.05"},
		{name: "delay of an event, median", unit: "µs", wanted: "1.25"},
		{name: "delay of an event, p99", unit: "µs", wanted: "1.25"},
		{name: "silent WebSocket", unit: "KB", wanted: "12 KB"},
		{name: "message of 100 bytes and its echo", unit: "µs of CPU", wanted: "1.08"},
		{name: "the same, echoes", unit: "/s", wanted: "0.95"},
		{name: "message of 64 KiB and its echo", unit: "µs of CPU", wanted: "1.08"},
		{name: "the same, echoes", unit: "/s", wanted: "0.95"},
	}
	for _, f := range figures {
		f.values = map[string][]float64{}
	}
	kinds := []string{bareProxy, pinboardProxy, attachedProxy}
	for range s.rounds {
		for _, kind := range kinds {
			all, err := measureStreams(ctx, kind, w, s.streams)
			if err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
			for i, value := range all {
				figures[i].values[kind] = append(figures[i].values[kind], value)
			}
		}
	}
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%d streams\tunit\twanted\t%s\t%s\tratio\t%s\tratio\n", s.streams, kinds[0], kinds[1], kinds[2])
	for _, f := range figures {
		fmt.Fprintf(t, "%s\t%s\t%s\t%.1f\t%.1f\t%s\t%.1f\t%s\n", f.name, f.unit, f.wanted,
			median(f.values[kinds[0]]), median(f.values[kinds[1]]), f.ratio(kinds[1]), median(f.values[kinds[2]]), f.ratio(kinds[2]))
	}
	return t.Flush()
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// ratio compares a proxy with the bare one, by medians, with the lowest and the
// highest ratio of one round.
func (f *streamed) ratio(kind string) string {
	ratios := make([]float64, len(f.values[kind]))
	for i, value := range f.values[kind] {
		ratios[i] = value / f.values[bareProxy][i]
	}
	return fmt.Sprintf("%.2f (%.2f-%.2f)", median(f.values[kind])/median(f.values[bareProxy]), slices.Min(ratios), slices.Max(ratios))
}

// measureStreams returns the figures of one proxy, in their order.
func measureStreams(ctx context.Context, kind string, w *streamWorker, n int) ([]float64, error) {
	size, perEvent, delays, err := holdStreams(ctx, kind, w, "sse", n)
	if err != nil {
		return nil, err
	}
	if len(delays) == 0 {
		return nil, errors.New("no event came")
	}
	micro := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	all := []float64{size, micro(perEvent), micro(delays[len(delays)/2]), micro(delays[len(delays)*99/100])}
	if size, _, _, err = holdStreams(ctx, kind, w, "ws", n); err != nil {
		return nil, err
	}
	all = append(all, size)
	for _, length := range []int{eventBytes, largeMessage} {
		per, rate, err := echoes(ctx, kind, w, length)
		if err != nil {
			return nil, err
		}
		all = append(all, micro(per), rate)
	}
	return all, nil
}

// holdStreams has a fresh proxy hold n streams. It returns the growth of its memory
// for each, in KB, and for each event its processor time and its delay, sorted.
func holdStreams(ctx context.Context, kind string, w *streamWorker, stream string, n int) (size float64, each time.Duration, delays []time.Duration, err error) {
	p, err := startProxy(ctx, kind, w)
	if err != nil {
		return 0, 0, nil, err
	}
	defer p.stop()
	var first, all load
	err = first.grow(ctx, p.addr, stream, warming)
	first.close()
	if err != nil {
		return 0, 0, nil, err
	}
	if err := pause(ctx, settling); err != nil {
		return 0, 0, nil, err
	}
	before, err := p.resident()
	if err != nil {
		return 0, 0, nil, err
	}
	defer all.close()
	if err := all.grow(ctx, p.addr, stream, n); err != nil {
		return 0, 0, nil, err
	}
	if err := pause(ctx, settling); err != nil {
		return 0, 0, nil, err
	}
	all.take()
	begun, err := p.cpu()
	if err != nil {
		return 0, 0, nil, err
	}
	if err := pause(ctx, watching); err != nil {
		return 0, 0, nil, err
	}
	delays = all.take()
	ended, err := p.cpu()
	if err != nil {
		return 0, 0, nil, err
	}
	after, err := p.resident()
	return float64(after-before) / float64(n) / 1024, (ended - begun) / time.Duration(max(1, len(delays))), delays, errors.Join(err, ctx.Err())
}

// echoes has WebSockets echo, each one message after the other. It returns the
// proxy's processor time for each and their rate.
func echoes(ctx context.Context, kind string, w *streamWorker, length int) (each time.Duration, rate float64, err error) {
	p, err := startProxy(ctx, kind, w)
	if err != nil {
		return 0, 0, err
	}
	defer p.stop()
	before, err := p.cpu()
	if err != nil {
		return 0, 0, err
	}
	begun := time.Now()
	total, err := echoAll(ctx, p.addr, message(length), watching)
	if err != nil {
		return 0, 0, err
	}
	took := time.Since(begun)
	after, err := p.cpu()
	return (after - before) / time.Duration(total), float64(total) / took.Seconds(), err
}

// echoAll has WebSockets echo a message for some time, and returns how often they
// did.
func echoAll(ctx context.Context, addr string, message []byte, most time.Duration) (total int, err error) {
	counts, errs := make([]int, sockets), make([]error, sockets)
	begun := time.Now()
	var group sync.WaitGroup
	for i := range sockets {
		group.Go(func() {
			conn, in, err := ask(ctx, addr, "ws", i)
			if err != nil {
				errs[i] = err
				return
			}
			defer func() { _ = conn.Close() }()
			for time.Since(begun) < most && errs[i] == nil && ctx.Err() == nil {
				errs[i] = echo(conn, in, message)
				counts[i]++
			}
		})
	}
	group.Wait()
	for _, count := range counts {
		total += count
	}
	return total, errors.Join(append(errs, ctx.Err())...)
}
