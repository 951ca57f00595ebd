package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/pinboard-go/pinboard/worker"
)

// room is one instance.
type room struct {
	*worker.Instance
	turns chan struct{} // a token for each event to come

	mu    sync.Mutex
	count int
	blob  []byte
	letGo chan struct{}
}

func newRoom(inst *worker.Instance) (http.Handler, error) {
	r := &room{Instance: inst, turns: make(chan struct{}, 100)}
	tell("open", map[string]any{"id": inst.ID()})
	if strings.HasPrefix(inst.ID(), "slow") {
		awaitGate()
	}
	inst.OnClose(func(ctx context.Context) error {
		tell("close", map[string]any{"id": inst.ID()})
		if os.Getenv("APP_CLOSING") == "" {
			return nil
		}
		select { // as if it saved its state
		case <-time.After(seconds("APP_CLOSING")):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /state", r.getState)
	mux.HandleFunc("POST /add", r.add)
	mux.HandleFunc("POST /linger", r.linger)
	mux.HandleFunc("PUT /blob", r.putBlob)
	mux.HandleFunc("GET /blob", r.getBlob)
	mux.HandleFunc("GET /events", r.events)
	mux.HandleFunc("POST /next", r.next)
	mux.HandleFunc("GET /socket", r.socket)
	mux.HandleFunc("POST /hold", r.hold)
	mux.HandleFunc("POST /let-go", r.endHold)
	mux.HandleFunc("GET /who", func(w http.ResponseWriter, req *http.Request) { answer(w, who(req)) })
	mux.HandleFunc("GET /headers", headers)
	mux.HandleFunc("POST /relay", r.relay)
	return mux, nil
}

// state answers with the instance's state. The caller holds the lock.
func (r *room) state(w http.ResponseWriter) {
	answer(w, map[string]any{
		"id": r.ID(), "pid": os.Getpid(), "epoch": r.Epoch(), "count": r.count, "windingDown": r.WindingDown(),
	})
}

func (r *room) getState(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state(w)
}

func (r *room) add(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	tell("add", map[string]any{"id": r.ID(), "count": r.count})
	r.state(w)
}

// linger is an add that answers when the gate is there, and heeds nothing else.
// With ?begun it has begun to answer before.
func (r *room) linger(w http.ResponseWriter, req *http.Request) {
	if req.URL.Query().Has("begun") {
		w.WriteHeader(http.StatusOK)
	}
	tell("linger", map[string]any{"id": r.ID()})
	awaitGate()
	tell("answer", map[string]any{"id": r.ID()})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state(w)
}

// awaitGate waits until the file is there that the environment names.
func awaitGate() {
	gate := os.Getenv("APP_GATE")
	for gate != "" {
		if _, err := os.Stat(gate); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (r *room) putBlob(w http.ResponseWriter, req *http.Request) {
	blob, err := io.ReadAll(req.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blob = blob
	sum := sha256.Sum256(blob)
	answer(w, map[string]any{"bytes": len(blob), "sha256": hex.EncodeToString(sum[:])})
}

func (r *room) getBlob(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(r.blob)
}

// events sends the first event at once, each further one after a POST to next.
func (r *room) events(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	for number := 0; ; number++ {
		if _, err := fmt.Fprintf(w, "data: %d\n\n", number); err != nil {
			return
		}
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-r.turns:
		case <-req.Context().Done():
			return
		}
	}
}

func (r *room) next(w http.ResponseWriter, _ *http.Request) {
	r.turns <- struct{}{}
	answer(w, map[string]any{})
}

func (r *room) socket(w http.ResponseWriter, req *http.Request) {
	conn, err := websocket.Accept(w, req, nil)
	if err != nil {
		return
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(4 << 20)
	for {
		kind, message, err := conn.Read(req.Context())
		if err != nil {
			return
		}
		if conn.Write(req.Context(), kind, message) != nil {
			return
		}
	}
}

// hold starts work that ends with a POST to let-go, or when it is cut.
func (r *room) hold(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	letGo := make(chan struct{})
	r.letGo = letGo
	r.Go(func(ctx context.Context) {
		select {
		case <-letGo:
		case <-ctx.Done():
		}
	})
	answer(w, map[string]any{})
}

func (r *room) endHold(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.letGo)
	answer(w, map[string]any{})
}

// relay tells who called, and relays the rest of the path in the body.
func (r *room) relay(w http.ResponseWriter, req *http.Request) {
	var hops []string
	if err := json.NewDecoder(req.Body).Decode(&hops); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	told := map[string]any{"pid": os.Getpid(), "who": who(req)}
	if len(hops) > 0 {
		status, next, err := r.pass(req.Context(), hops[0], hops[1:])
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		told["status"], told["next"] = status, next
	}
	answer(w, told)
}

// pass has another instance relay what is left of the path.
func (r *room) pass(ctx context.Context, to string, rest []string) (status int, answer json.RawMessage, err error) {
	text, err := json.Marshal(rest)
	if err != nil {
		return 0, nil, err
	}
	call, err := http.NewRequestWithContext(ctx, http.MethodPost, to+"/relay", bytes.NewReader(text))
	if err != nil {
		return 0, nil, err
	}
	call.Header.Set("Content-Type", "application/json")
	res, err := r.Client().Do(call)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err = io.ReadAll(res.Body)
	return res.StatusCode, answer, err
}

// who tells on whose behalf a request comes.
// headers tells who called, and what headers the application sees.
func headers(w http.ResponseWriter, req *http.Request) {
	pairs := [][2]string{}
	for name, values := range req.Header {
		for _, value := range values {
			pairs = append(pairs, [2]string{strings.ToLower(name), value})
		}
	}
	answer(w, map[string]any{"who": who(req), "headers": pairs})
}

func who(req *http.Request) map[string]any {
	told := map[string]any{"kind": "anonymous", "authorization": nil}
	if sent := req.Header.Get("Authorization"); sent != "" {
		told["authorization"] = sent
	}
	caller, ok := worker.CallerFrom(req.Context())
	switch {
	case ok && caller.Instance != nil:
		told["kind"], told["ns"], told["id"], told["depth"] = "instance", caller.Instance.Namespace, caller.Instance.ID, caller.Instance.Depth
	case ok && caller.Account != nil:
		scopes := slices.Sorted(slices.Values(caller.Account.Scopes))
		told["kind"], told["sub"], told["scopes"], told["claims"] = "account", caller.Account.Subject, scopes, caller.Account.Claims
	}
	return told
}
