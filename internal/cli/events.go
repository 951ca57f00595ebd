package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// lastEvents is how many events are shown before those that are followed.
	lastEvents = 10
	// silence is after how long without a word a stream is given up: there is a
	// comment every 15 s.
	silence = 45 * time.Second
	// firstPause and longestPause are between attempts to follow again.
	firstPause   = 500 * time.Millisecond
	longestPause = 10 * time.Second
)

// event is one event.
type event struct {
	Event, At           int64
	Kind                string
	Namespaces          []string
	Hostname, ID        string
	ClientID, SessionID string
	FromClientID        string
	FromSessionID       string
	By, Detail          string
	DeadlineMs          *int64
	Epoch, Skipped      int64
}

func eventFlags(c *call, f *flag.FlagSet) {
	f.BoolVar(&c.follow, "f", false, "go on with new events as they happen")
	f.StringVar(&c.namespace, "n", "", "only of this `namespace`")
	f.StringVar(&c.id, "id", "", "only of this `id`, of the namespace")
	f.StringVar(&c.worker, "w", "", "only of this worker, by its `clientId`")
	f.StringVar(&c.kind, "kind", "", "only of this `kind`, such as lapsed or failover")
	f.IntVar(&c.limit, "limit", 0, "show this many past ones at most; 100 if left out, 10 with -f")
	hostnameFlag(c, f)
}

// events shows what happened, and with -f what happens.
func events(ctx context.Context, c *call) error {
	if c.limit < 0 {
		return fmt.Errorf("events: -limit must not be below 0 (%w)", errUsage)
	}
	if c.limit == 0 {
		c.limit = defaultLimit
		if c.follow {
			c.limit = lastEvents
		}
	}
	query := url.Values{}
	set(query, "namespace", c.namespace)
	set(query, "hostname", c.hostname)
	set(query, "id", c.id)
	set(query, "clientId", c.worker)
	set(query, "kind", c.kind)
	past, err := c.past(ctx, query)
	if err != nil {
		return err
	}
	slices.Reverse(past)
	if !c.follow {
		return c.show(past)
	}
	last := int64(1) // before all events
	for _, text := range past {
		if last, err = c.line(text); err != nil {
			return err
		}
	}
	return c.followFrom(ctx, query, last)
}

// past returns the last events, the newest first.
func (c *call) past(ctx context.Context, query url.Values) (all []json.RawMessage, err error) {
	q := url.Values{}
	maps.Copy(q, query)
	for len(all) < c.limit {
		q.Set("limit", strconv.Itoa(min(page, c.limit-len(all))))
		var some struct {
			Events []json.RawMessage
			Before int64
		}
		if _, err := c.get(ctx, "/registry/events", q, &some); err != nil {
			return nil, err
		}
		all = append(all, some.Events...)
		if some.Before == 0 {
			break
		}
		q.Set("before", strconv.FormatInt(some.Before, 10))
	}
	return all, nil
}

func (c *call) show(past []json.RawMessage) error {
	if c.json {
		return c.encode(map[string]any{"events": append([]json.RawMessage{}, past...)})
	}
	list := make([]event, len(past))
	for i, text := range past {
		if err := json.Unmarshal(text, &list[i]); err != nil {
			return fmt.Errorf("read an event: %w", err)
		}
	}
	return c.eventTable(list)
}

func (c *call) eventTable(list []event) error {
	rows := make([][]string, len(list))
	for i, e := range list {
		rows[i] = []string{when(e.At), e.Kind, e.what(), e.ClientID, e.more()}
	}
	return c.table("AT EVENT WHAT WORKER MORE", rows)
}

// what an event is about.
func (e event) what() string {
	var names []string
	for _, ns := range e.Namespaces {
		names = append(names, hosted(e.Hostname, ns))
	}
	if e.ID != "" {
		return strings.Join(names, " ") + "/" + e.ID
	}
	return strings.Join(names, " ")
}

// more is what is known besides.
func (e event) more() string {
	var all []string
	add := func(name, value string) {
		if value != "" {
			all = append(all, name+"="+value)
		}
	}
	if e.FromClientID != "" {
		add("from", e.FromClientID)
	} else {
		add("fromSession", e.FromSessionID)
	}
	add("by", e.By)
	if e.DeadlineMs != nil {
		add("deadline", (time.Duration(*e.DeadlineMs) * time.Millisecond).String())
	}
	if e.Epoch > 0 {
		add("epoch", strconv.FormatInt(e.Epoch, 10))
	}
	if e.Skipped > 0 {
		add("notRecordedBefore", strconv.FormatInt(e.Skipped, 10))
	}
	add("detail", e.Detail)
	return strings.Join(all, " ")
}

// line writes one event as a line, and returns its number.
func (c *call) line(text json.RawMessage) (int64, error) {
	var e event
	if err := json.Unmarshal(text, &e); err != nil {
		return 0, fmt.Errorf("read an event: %w", err)
	}
	if c.json {
		return e.Event, c.raw(text)
	}
	return e.Event, c.print("%s  %-12s  %s  %s  %s", when(e.At), e.Kind, e.what(), e.ClientID, e.more())
}

// followFrom writes events as they happen, until ctx ends. A stream that breaks off
// is taken up where it ended.
func (c *call) followFrom(ctx context.Context, query url.Values, last int64) error {
	pause := firstPause
	for ctx.Err() == nil {
		before := last
		err := c.stream(ctx, query, &last)
		switch refused, ok := errors.AsType[*refusal](err); {
		case ctx.Err() != nil:
			return nil
		case ok && refused.exit() != Failed, errors.Is(err, errOutput):
			return err
		}
		if last != before {
			pause = firstPause
		}
		_, _ = fmt.Fprintln(c.err, "pinboard: the stream of events broke off, trying again:", clean(err.Error()))
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, longestPause)
	}
	return nil
}

// errOutput: the events can't be written.
var errOutput = errors.New("write an event")

// stream writes events from the one on that last names, and keeps last.
func (c *call) stream(ctx context.Context, query url.Values, last *int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	quiet := time.AfterFunc(silence, cancel)
	defer quiet.Stop()
	res, err := c.do(ctx, http.MethodGet, "/registry/events", query, nil, http.Header{
		"Accept": {"text/event-stream"}, "Last-Event-Id": {strconv.FormatInt(*last, 10)},
	})
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		quiet.Reset(silence)
		data, ok := strings.CutPrefix(lines.Text(), "data: ") // one line an event
		if !ok {
			continue
		}
		number, err := c.line(json.RawMessage(data))
		if err != nil {
			return fmt.Errorf("%w: %w", errOutput, err)
		}
		*last = number
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read the events: %w", err)
	}
	return fmt.Errorf("read the events: %w", io.EOF)
}
