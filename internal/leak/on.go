//go:build leakcheck

package leak

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// LEAKCHECK_DIR, without which nothing is kept.
var dir = os.Getenv("LEAKCHECK_DIR")

var (
	known   sync.Map // of texts
	opened  atomic.Int64
	secrets = file("secrets")
	said    = file("said")
	logged  = file("log")
)

// lockedFile is written by one at a time, and not buffered: processes of tests
// are killed.
type lockedFile struct {
	once sync.Once
	kind string
	mu   sync.Mutex
	f    *os.File
}

func file(kind string) *lockedFile { return &lockedFile{kind: kind} }

// Write appends to the file. What can't be kept makes the check worthless, and
// ends the process.
func (l *lockedFile) Write(p []byte) (int, error) {
	if dir == "" {
		return len(p), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.once.Do(func() {
		name := fmt.Sprintf("%s-%d-%d", filepath.Base(os.Args[0]), os.Getpid(), opened.Add(1))
		f, err := os.OpenFile(filepath.Join(dir, l.kind, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			panic("leak: " + err.Error())
		}
		l.f = f
	})
	n, err := l.f.Write(p)
	if err != nil {
		panic("leak: " + err.Error())
	}
	return n, nil
}

// Sync implements zapcore.WriteSyncer.
func (l *lockedFile) Sync() error { return nil }

// Secret notes a text that must never be shown.
func Secret(text string) {
	if _, there := known.LoadOrStore(text, true); !there {
		_, _ = secrets.Write([]byte(strconv.Quote(text) + "\n"))
	}
}

// Logger returns a logger that says the same, and keeps it: in both of zap's
// encodings, as they treat values of unknown types differently.
func Logger(log *zap.Logger) *zap.Logger {
	config := zap.NewDevelopmentEncoderConfig()
	return log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewTee(core,
			zapcore.NewCore(zapcore.NewJSONEncoder(config), logged, zap.DebugLevel),
			zapcore.NewCore(zapcore.NewConsoleEncoder(config), logged, zap.DebugLevel))
	}))
}

// challengeAnswer begins the one answer that is to hold a secret: a worker's to
// who has shown its other secret (protocol §3).
var challengeAnswer = []byte(`{"value":`)

// Said keeps the text of an answer.
func Said(text []byte) {
	if !bytes.HasPrefix(text, challengeAnswer) {
		_, _ = said.Write(append(bytes.Clone(text), '\n'))
	}
}

// Tee returns a writer for what a process prints, which keeps it.
func Tee(w io.Writer) io.Writer { return io.MultiWriter(file("printed"), w) }

// Dir is where files that a test makes are kept, "" if they are not.
func Dir() string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, "files")
}
