package redis

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/pinboard-go/pinboard/internal/quiet"
	"github.com/pinboard-go/pinboard/internal/store"
)

// errForm: a script's answer is not of the form that its header tells.
var errForm = errors.New("unexpected answer")

// answer is a script's answer, read value by value. The first error sticks, and
// every value after it is the zero value.
type answer struct {
	script string
	values []rueidis.RedisMessage
	err    error
}

func read(script string, res rueidis.RedisResult) *answer {
	m, err := res.ToMessage()
	if err != nil {
		return failed(script, err)
	}
	a := &answer{script: script, values: []rueidis.RedisMessage{m}}
	if m.IsArray() {
		a.values, err = m.ToArray()
		a.fail(err)
	}
	return a
}

func failed(script string, err error) *answer {
	a := &answer{script: script}
	a.fail(err)
	return a
}

func (a *answer) fail(err error) {
	if err != nil && a.err == nil {
		if said, ok := rueidis.IsRedisErr(err); ok {
			if unequal := readUnequal(said.Error()); unequal != nil {
				a.err, a.values = unequal, nil
				return
			}
			err = errors.New(quiet.Redis(said.Error())) // it may repeat the command
		}
		if _, ok := errors.AsType[*strconv.NumError](err); ok {
			err = errForm // it quotes what is no number
		}
		a.err = fmt.Errorf("redis %s: %w", a.script, err)
		a.values = nil
	}
}

// more reports whether there is another value.
func (a *answer) more() bool { return len(a.values) > 0 }

func (a *answer) next() (rueidis.RedisMessage, bool) {
	if a.err == nil && len(a.values) == 0 {
		a.fail(errForm)
	}
	if a.err != nil {
		return rueidis.RedisMessage{}, false
	}
	m := a.values[0]
	a.values = a.values[1:]
	return m, true
}

func (a *answer) int() int64 {
	m, ok := a.next()
	if !ok {
		return 0
	}
	n, err := m.AsInt64()
	a.fail(err)
	return n
}

func (a *answer) flag() bool { return a.int() != 0 }

func (a *answer) float() float64 {
	m, ok := a.next()
	if !ok {
		return 0
	}
	f, err := m.AsFloat64()
	a.fail(err)
	return f
}

func (a *answer) text() string {
	m, ok := a.next()
	if !ok {
		return ""
	}
	s, err := m.ToString()
	a.fail(err)
	return s
}

// lines reads a text of lines; no line is empty.
func (a *answer) lines() []string {
	return strings.FieldsFunc(a.text(), func(r rune) bool { return r == '\n' })
}

func (a *answer) duration() time.Duration { return time.Duration(a.int()) * time.Millisecond }

// drain reads what lib_fleet.lua tells of a drain.
func (a *answer) drain() store.Drain {
	drain := store.Drain{Draining: a.flag()}
	if left := a.duration(); left >= 0 {
		drain.Deadline, drain.Left = true, left
	}
	return drain
}

// list reads an array.
func (a *answer) list() *answer {
	m, ok := a.next()
	if !ok {
		return &answer{script: a.script, err: a.err}
	}
	values, err := m.ToArray()
	a.fail(err)
	return &answer{script: a.script, values: values, err: a.err}
}

// firstError returns the first error among answers.
func firstError(answers []*answer) error {
	for _, a := range answers {
		if a.err != nil {
			return a.err
		}
	}
	return nil
}
