package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pinboard-go/pinboard/internal/faults"
)

// forever is the lease of a lawless process, in milliseconds.
const forever = 3_600_000

// recorder writes down what the worker, package worker's, tells pinboard and
// what it is told, without asking it.
type recorder struct {
	journal       *faults.Journal
	namespaces    []string
	lawless       bool
	registrations atomic.Int64 // sent so far
}

func (rec *recorder) write(e faults.Event) {
	if err := rec.journal.Write(e); err != nil {
		die(err)
	}
}

// RoundTrip makes a call to pinboard's registry.
func (rec *recorder) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := faults.Now()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	_, call, _ := strings.Cut(r.URL.Path, "/registry/")
	rec.telling(call, body)
	res, err := direct.RoundTrip(r)
	if err != nil || res.StatusCode != http.StatusOK || call != "register" && call != "heartbeat" {
		return res, err
	}
	return rec.told(res, sent)
}

// direct is what the worker would use itself.
var direct = &http.Transport{IdleConnTimeout: 4 * time.Second}

// telling records what pinboard may conclude from a call, before it is made.
func (rec *recorder) telling(call string, body []byte) {
	now := faults.Now()
	switch call {
	case "register":
		rec.registrations.Add(1)
		var said struct{ Instances map[string][]string }
		_ = json.Unmarshal(body, &said) // the worker's own
		var ids []string
		for namespace, some := range said.Instances {
			for _, id := range some {
				ids = append(ids, namespace+"/"+id)
			}
		}
		rec.write(faults.Event{Kind: faults.Kept, Begin: now, IDs: ids})
	case "release":
		for _, id := range released(body) {
			rec.write(faults.Event{Kind: faults.GaveUp, Begin: now, ID: id})
		}
	case "deregister":
		rec.write(faults.Event{Kind: faults.GaveUp, Begin: now})
	}
}

// released returns the ids of a release, which is one object or a list.
func released(body []byte) (ids []string) {
	type release struct{ Namespace, ID string }
	var one release
	var many []release
	if json.Unmarshal(body, &one) == nil {
		many = []release{one}
	} else {
		_ = json.Unmarshal(body, &many)
	}
	for _, r := range many {
		ids = append(ids, r.Namespace+"/"+r.ID)
	}
	return ids
}

// told records what pinboard granted and took, before the worker knows.
func (rec *recorder) told(res *http.Response, sent time.Duration) (*http.Response, error) {
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil {
		return nil, err
	}
	now := faults.Now()
	var answer map[string]any
	var said struct {
		ExpiresInMs float64
		Duplicates  []struct{ NS, ID string }
	}
	if json.Unmarshal(body, &said) == nil && json.Unmarshal(body, &answer) == nil {
		for _, d := range said.Duplicates {
			rec.write(faults.Event{Kind: faults.GaveUp, Begin: now, ID: d.NS + "/" + d.ID})
		}
		lease := time.Duration(said.ExpiresInMs * float64(time.Millisecond))
		rec.write(faults.Event{Kind: faults.Granted, Begin: sent, At: now, End: sent + lease})
		if rec.lawless {
			answer["expiresInMs"] = forever
			if body, err = json.Marshal(answer); err != nil {
				return nil, err
			}
			res.Header.Del("Content-Length")
			res.ContentLength = int64(len(body))
		}
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	return res, nil
}

// arrival is what is known of a request before the worker looks at it.
type arrival struct {
	at            time.Duration
	epoch         int64
	registrations int64
}

type arrivalKey struct{}

// before records when requests come, and which ones are refused.
func (rec *recorder) before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.SplitN(r.URL.Path, "/", 4) // nothing, the namespace, the id, the rest
		if len(parts) < 4 || !slices.Contains(rec.namespaces, "/"+parts[1]) {
			next.ServeHTTP(w, r)
			return
		}
		epoch, _ := strconv.ParseInt(r.Header.Get("Pinboard-Epoch"), 10, 64)
		a := arrival{at: faults.Now(), epoch: epoch, registrations: rec.registrations.Load()}
		id := "/" + parts[1] + "/" + parts[2]
		next.ServeHTTP(&refusals{ResponseWriter: w, rec: rec, id: id}, r.WithContext(context.WithValue(r.Context(), arrivalKey{}, a)))
	})
}

// refusals notes a 503: no room answers one, so it is the worker's, and
// pinboard may place the id elsewhere.
type refusals struct {
	http.ResponseWriter
	rec *recorder
	id  string
}

// Unwrap lets http.ResponseController through.
func (w *refusals) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sends the response's header.
func (w *refusals) WriteHeader(status int) {
	if status == http.StatusServiceUnavailable {
		w.rec.write(faults.Event{Kind: faults.GaveUp, Begin: faults.Now(), ID: w.id})
	}
	w.ResponseWriter.WriteHeader(status)
}
