package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/pinboard-go/pinboard/worker"
)

// What one room holds, and what a member may send.
const (
	maxMembers = 100
	maxHistory = 50   // messages that a new member is shown
	maxName    = 32   // characters
	maxText    = 1000 // characters
	// queue is how many messages a member may be behind. One who is further
	// behind is dropped: the others must neither wait nor pay for it.
	queue = 256
)

// placement is what a room needs of its *worker.Instance.
type placement interface {
	ID() string
	Epoch() int64
	Context() context.Context
}

// room is one instance: nobody else in the fleet has it, so a mutex is all the
// coordination that its members need.
type room struct {
	in     placement
	worker string
	life   string // tells this room from one that had the id before

	mu      sync.Mutex
	members map[*member]struct{}
	joined  int
	said    int
	history []message
}

// welcome is the first frame that a member gets.
type welcome struct {
	Type    string `json:"type"` // "welcome"
	Room    string `json:"room"`
	Worker  string `json:"worker"`
	Epoch   int64  `json:"epoch"`
	Life    string `json:"life"`
	You     int    `json:"you"`
	Members int    `json:"members"`
	// History holds the last messages, the oldest first.
	History []message `json:"history"`
}

// message is what somebody said.
type message struct {
	Type   string `json:"type"` // "message"
	Number int    `json:"number"`
	By     int    `json:"by"` // the member's welcome.You
	Name   string `json:"name"`
	Text   string `json:"text"`
	At     int64  `json:"at"` // Unix time in milliseconds
}

// presence tells how many are here. It comes whenever that changes, and every
// keepAlive, so that the page notices when nothing comes any more.
type presence struct {
	Type    string `json:"type"` // "presence"
	Members int    `json:"members"`
}

// saying is what a member sends.
type saying struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// newRoom returns the constructor of a worker's rooms. It runs on the first
// request for an id, and starts with nothing: there is no store here. What has
// to outlive the instance goes to a store, as in examples/ledger.
func newRoom(workerName string) worker.Constructor {
	return func(in *worker.Instance) (http.Handler, error) {
		return openRoom(in, workerName), nil
	}
}

func openRoom(in placement, workerName string) http.Handler {
	r := &room{in: in, worker: workerName, life: rand.Text(), members: map[*member]struct{}{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", r.servePage)
	mux.HandleFunc("GET /ws", r.serveSocket)
	return mux
}

// join lets a member in, with a welcome as its first frame, and reports false
// if the room is full.
func (r *room) join(m *member) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.members) >= maxMembers {
		return false
	}
	r.joined++
	m.id = r.joined
	r.members[m] = struct{}{}
	m.frames <- encode(welcome{
		Type: "welcome", Room: r.in.ID(), Worker: r.worker, Epoch: r.in.Epoch(), Life: r.life,
		You: m.id, Members: len(r.members), History: append([]message{}, r.history...),
	})
	r.tellPresence()
	return true
}

// leave may be called twice.
func (r *room) leave(m *member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(m)
}

func (r *room) remove(m *member) {
	if _, here := r.members[m]; here {
		delete(r.members, m)
		r.tellPresence()
	}
}

// say gives everybody a message. It never waits for anybody.
func (r *room) say(m *member, s saying) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said++
	msg := message{Type: "message", Number: r.said, By: m.id, Name: s.Name, Text: s.Text, At: time.Now().UnixMilli()}
	if r.history = append(r.history, msg); len(r.history) > maxHistory {
		r.history = r.history[1:]
	}
	frame := encode(msg)
	for other := range r.members {
		select {
		case other.frames <- frame:
		default:
			other.end(errSlow)
			r.remove(other)
		}
	}
}

// tellPresence wakes the members' writers. Those who are behind get the newest
// figure once, not every one that there has been.
func (r *room) tellPresence() {
	for m := range r.members {
		select {
		case m.presence <- struct{}{}:
		default:
		}
	}
}

func (r *room) presenceFrame() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return encode(presence{Type: "presence", Members: len(r.members)})
}

// parse reads a frame of a member's. What it returns is text like any other:
// the page shows it as such, whatever is in it.
func parse(frame []byte) (s saying, ok bool) {
	if json.Unmarshal(frame, &s) != nil {
		return saying{}, false
	}
	s.Name = strings.Join(strings.Fields(s.Name), " ")
	s.Text = strings.TrimSpace(s.Text)
	ok = s.Name != "" && utf8.RuneCountInString(s.Name) <= maxName &&
		s.Text != "" && utf8.RuneCountInString(s.Text) <= maxText
	return s, ok
}

func encode(frame any) []byte {
	text, err := json.Marshal(frame)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return text
}
