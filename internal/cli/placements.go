package cli

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
)

const (
	// defaultLimit is how many rows or events are shown, and
	defaultLimit = 100
	// page how many are asked for at once, at most.
	page = 1000
)

// row is a placement.
type row struct {
	Namespace, Hostname, ID, ClientID, SessionID string
	Epoch, PlacedAt                              int64
	Why                                          struct{ Cause, Choice string }
}

func placementFlags(c *call, f *flag.FlagSet) {
	f.StringVar(&c.namespace, "n", "", "only of this `namespace`, such as /counters; all if empty")
	f.StringVar(&c.worker, "w", "", "only of this worker, by its `clientId`")
	f.StringVar(&c.prefix, "p", "", "only ids that begin with this `prefix`")
	limitFlag(c, f)
	hostnameFlag(c, f)
}

func hostnameFlag(c *call, f *flag.FlagSet) {
	f.StringVar(&c.hostname, "hostname", "", "of the binding under this host `name`")
}

func limitFlag(c *call, f *flag.FlagSet) {
	f.IntVar(&c.limit, "limit", defaultLimit, "show this many at most; 0 for all")
}

func deadlineFlag(c *call, f *flag.FlagSet) {
	f.Var(&c.deadline, "deadline", "after this `time`, such as 30s, what has not ended is ended; never if left out")
}

func windDownFlags(c *call, f *flag.FlagSet) {
	f.Var(&c.deadline, "deadline", "the instance has this `time` to close, such as 30s; that is also what it has if left out")
	f.BoolVar(&c.revoke, "revoke", false, "take it back")
	hostnameFlag(c, f)
}

// set adds a parameter unless it is empty.
func set(query url.Values, name, value string) {
	if value != "" {
		query.Set(name, value)
	}
}

// placements walks over placements, page by page. A page may be empty before the
// last one.
func placements(ctx context.Context, c *call) error {
	if c.limit < 0 {
		return fmt.Errorf("placements: -limit must not be below 0 (%w)", errUsage)
	}
	query := url.Values{}
	set(query, "namespace", c.namespace)
	set(query, "hostname", c.hostname)
	set(query, "clientId", c.worker)
	set(query, "prefix", c.prefix)
	all := []json.RawMessage{}
	more := false
	for {
		want := page
		if c.limit > 0 {
			want = min(want, c.limit-len(all))
		}
		query.Set("limit", strconv.Itoa(want))
		var some struct {
			Placements []json.RawMessage
			Cursor     string
		}
		if _, err := c.get(ctx, "/registry/placements", query, &some); err != nil {
			return err
		}
		all = append(all, some.Placements...)
		if more = some.Cursor != ""; !more || c.limit > 0 && len(all) >= c.limit {
			break
		}
		query.Set("cursor", some.Cursor)
	}
	if more {
		_, _ = fmt.Fprintf(c.err, "pinboard: there may be more than %d: see -limit\n", len(all))
	}
	if c.json {
		return c.encode(map[string]any{"placements": all})
	}
	rows := make([][]string, len(all))
	for i, text := range all {
		var r row
		if err := json.Unmarshal(text, &r); err != nil {
			return fmt.Errorf("read a placement: %w", err)
		}
		rows[i] = []string{
			hosted(r.Hostname, r.Namespace), r.ID, r.ClientID, strconv.FormatInt(r.Epoch, 10), when(r.PlacedAt), reason(r.Why.Cause, r.Why.Choice),
		}
	}
	return c.table("NAMESPACE ID WORKER EPOCH SINCE WHY", rows)
}

// reason tells why an id is where it is.
func reason(cause, choice string) string {
	causes := map[string]string{
		"new": "", "failover": "failover after the owner's end, ", "refused": "refused elsewhere, ", "reclaimed": "listed by the worker as it registered",
	}
	choices := map[string]string{"caller": "the caller's own worker", "affinity": "affinity key", "twoChoices": "two choices"}
	text, ok := causes[cause]
	if !ok {
		return ""
	}
	return text + choices[choice]
}

// where shows one id.
func where(ctx context.Context, c *call) error {
	query := url.Values{"namespace": {c.args[0]}, "id": {c.args[1]}}
	set(query, "hostname", c.hostname)
	var p struct {
		row
		AdvertiseURL string
		Moves        []event
	}
	text, err := c.get(ctx, "/registry/placement", query, &p)
	if err != nil || c.json {
		return c.rawUnless(err, text)
	}
	if err := c.table("WHAT VALUE", [][]string{
		{"id", hosted(p.Hostname, p.Namespace) + "/" + p.ID},
		{"worker", p.ClientID},
		{"url", p.AdvertiseURL},
		{"session", p.SessionID},
		{"epoch", strconv.FormatInt(p.Epoch, 10)},
		{"since", when(p.PlacedAt)},
		{"why", reason(p.Why.Cause, p.Why.Choice)},
	}); err != nil || len(p.Moves) == 0 {
		return err
	}
	if err := c.print(""); err != nil {
		return err
	}
	return c.eventTable(p.Moves)
}

// windDown asks an instance to close.
func windDown(ctx context.Context, c *call) error {
	if c.revoke && c.deadline.set {
		return fmt.Errorf("wind-down: -revoke has no -deadline (%w)", errUsage)
	}
	body := map[string]any{"namespace": c.args[0], "id": c.args[1], "deadline": 30.0}
	if c.deadline.set {
		body["deadline"] = c.deadline.d.Seconds()
	}
	if c.revoke {
		body["deadline"] = nil
	}
	if c.hostname != "" {
		body["hostname"] = c.hostname
	}
	var queued struct{}
	text, err := c.ask(ctx, http.MethodPost, "/registry/wind_down", nil, body, &queued)
	if err != nil || c.json {
		return c.rawUnless(err, text)
	}
	return c.print("told to the worker with its next heartbeat")
}
