package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// overview shows counts.
func overview(ctx context.Context, c *call) error {
	var o struct {
		Placements int
		Namespaces []struct {
			Namespace, Hostname        string
			Placements, Workers, Ready int
			Headroom                   float64
		}
		Workers []struct {
			ClientID, Hostname, State string
			Placements                int
			Headroom                  float64
			Namespaces                map[string]int
		}
	}
	text, err := c.get(ctx, "/registry/overview", nil, &o)
	if err != nil || c.json {
		return c.rawUnless(err, text)
	}
	var rows [][]string
	for _, n := range o.Namespaces {
		rows = append(rows, []string{
			hosted(n.Hostname, n.Namespace), strconv.Itoa(n.Placements), strconv.Itoa(n.Workers), strconv.Itoa(n.Ready), number(n.Headroom),
		})
	}
	if err := c.table("NAMESPACE PLACEMENTS WORKERS READY HEADROOM", rows); err != nil {
		return err
	}
	rows = nil
	for _, w := range o.Workers {
		var by []string
		for _, ns := range slices.Sorted(maps.Keys(w.Namespaces)) {
			by = append(by, fmt.Sprint(hosted(w.Hostname, ns), "=", w.Namespaces[ns]))
		}
		rows = append(rows, []string{w.ClientID, w.State, strconv.Itoa(w.Placements), number(w.Headroom), strings.Join(by, " ")})
	}
	if err := c.print(""); err != nil {
		return err
	}
	return c.table("WORKER STATE PLACEMENTS HEADROOM BY_NAMESPACE", rows)
}

// rawUnless writes what came, unless there is an error, which it returns.
func (c *call) rawUnless(err error, text json.RawMessage) error {
	if err != nil {
		return err
	}
	return c.raw(text)
}

// workers lists the live workers.
func workers(ctx context.Context, c *call) error {
	var list struct {
		Workers []struct {
			ClientID, AdvertiseURL, Hostname, Env string
			Namespaces                            []string
			Headroom                              float64
			Draining, Degraded                    bool
			DrainDeadline                         *float64
			ExpiresInMs, RegisteredAt, Epoch      int64
		}
	}
	text, err := c.get(ctx, "/registry/workers", nil, &list)
	if err != nil || c.json {
		return c.rawUnless(err, text)
	}
	var rows [][]string
	for _, w := range list.Workers {
		var states []string
		if w.Draining {
			state := "draining"
			if w.DrainDeadline != nil {
				state += fmt.Sprintf("(%.0fs)", *w.DrainDeadline)
			}
			states = append(states, state)
		}
		if w.Degraded {
			states = append(states, "degraded")
		}
		if len(states) == 0 {
			states = []string{"ready"}
		}
		for i, ns := range w.Namespaces {
			w.Namespaces[i] = hosted(w.Hostname, ns)
		}
		rows = append(rows, []string{
			w.ClientID, strings.Join(states, ","), number(w.Headroom), strconv.FormatInt(w.Epoch, 10), w.Env,
			fmt.Sprintf("%.1fs", float64(w.ExpiresInMs)/1000), when(w.RegisteredAt), w.AdvertiseURL, strings.Join(w.Namespaces, " "),
		})
	}
	return c.table("WORKER STATE HEADROOM EPOCH ENV LEASE SINCE URL NAMESPACES", rows)
}

// health shows the node's health.
func health(ctx context.Context, c *call) error {
	var h map[string]int64
	text, err := c.get(ctx, "/registry/health", nil, &h)
	if err != nil || c.json {
		return c.rawUnless(err, text)
	}
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(h)) {
		rows = append(rows, []string{name, strconv.FormatInt(h[name], 10)})
	}
	return c.table("COUNTER VALUE", rows)
}

// stats shows what workers say of themselves.
func stats(ctx context.Context, c *call) error {
	query := url.Values{}
	if len(c.args) > 0 {
		query.Set("clientId", c.args[0])
	}
	var all map[string]json.RawMessage
	text, err := c.get(ctx, "/registry/stats", query, &all)
	if err != nil || c.json {
		return c.rawUnless(err, text)
	}
	var rows [][]string
	for _, client := range slices.Sorted(maps.Keys(all)) {
		rows = append(rows, statsRow(client, all[client]))
	}
	return c.table("WORKER DRAINING INSTANCES CONNECTIONS TASKS LEASE_FLAPS UP RSS ERROR", rows)
}

func statsRow(client string, text json.RawMessage) []string {
	var s struct {
		Error      string
		Draining   bool
		LeaseFlaps float64
		Instances  []struct{ Connections, Tasks float64 }
		Process    struct{ UptimeMs, RSSBytes float64 }
	}
	if err := json.Unmarshal(text, &s); err != nil {
		s.Error = "the stats are not of the form that workers have"
	}
	if s.Error != "" {
		return []string{client, "", "", "", "", "", "", "", s.Error}
	}
	connections, tasks := 0.0, 0.0
	for _, i := range s.Instances {
		connections, tasks = connections+i.Connections, tasks+i.Tasks
	}
	rss := ""
	if s.Process.RSSBytes > 0 {
		rss = fmt.Sprintf("%.0fMiB", s.Process.RSSBytes/(1<<20))
	}
	up := time.Duration(s.Process.UptimeMs * float64(time.Millisecond)).Truncate(time.Second)
	return []string{
		client, strconv.FormatBool(s.Draining), strconv.Itoa(len(s.Instances)), number(connections), number(tasks),
		number(s.LeaseFlaps), up.String(), rss, "",
	}
}

// drain drains a worker.
func drain(ctx context.Context, c *call) error {
	body := map[string]any{"clientId": c.args[0]}
	if c.deadline.set {
		body["deadline"] = c.deadline.d.Seconds()
	}
	var d struct{ DrainDeadline *float64 }
	text, err := c.ask(ctx, http.MethodPost, "/registry/drain", nil, body, &d)
	if err != nil || c.json {
		return c.rawUnless(err, text)
	}
	if d.DrainDeadline != nil {
		return c.print("%s drains, for at most %.0f s", c.args[0], *d.DrainDeadline)
	}
	return c.print("%s drains", c.args[0])
}

// undrain takes a drain back.
func undrain(ctx context.Context, c *call) error {
	var d struct{}
	text, err := c.ask(ctx, http.MethodPost, "/registry/undrain", nil, map[string]any{"clientId": c.args[0]}, &d)
	if err != nil || c.json {
		return c.rawUnless(err, text)
	}
	return c.print("%s takes new ids", c.args[0])
}
