package pinboard

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// brittle is a log of the host's that fails at what streams have to say.
type brittle struct{ zapcore.Core }

func (brittle) Enabled(zapcore.Level) bool { return true }

func (b brittle) With([]zapcore.Field) zapcore.Core { return b }

func (b brittle) Check(e zapcore.Entry, c *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	switch e.Message {
	case "a WebSocket ended", "the worker broke its answer off", "a stream failed", accessMessage:
		return c.AddCore(e, b)
	}
	return c
}

func (brittle) Write(zapcore.Entry, []zapcore.Field) error { panic("planted") }

// The server contains what the host's code does on its goroutines; nobody but the
// stream itself does on those of streams.
func TestALogThatFailsAtTheEndOfADetachedStreamEndsNothingElse(t *testing.T) {
	t.Parallel()
	for _, request := range []string{"GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n", upgradeRequest("/counters/alice")} {
		log := zap.New(brittle{zapcore.NewNopCore()})
		f := newFront(t, detaching, func(s *setup) { s.opts.Logger, s.opts.AccessLog = log, log })
		f.register(newFake(t, func(h *hit) {
			if h.header.Get("Upgrade") != "" {
				h.accept()
			} else {
				h.send(eventsHead + "8\r\ndata: x\n\r\n") // and breaks off
			}
			h.last = true
		}), "a")
		c := f.ask(request)
		c.answer("GET")
		_, _ = io.Copy(io.Discard, c.r)
		require.NoError(t, c.Close())
		f.quiet()
		require.Eventually(t, func() bool {
			f.pb.background.mu.Lock()
			defer f.pb.background.mu.Unlock()
			return f.pb.background.requests == 0
		}, patience, time.Millisecond, "nothing is left")
	}
}
