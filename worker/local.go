package worker

import (
	"os"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// envAllowLocal, set to 1, allows local mode where the environment says
// production.
const envAllowLocal = "PINBOARD_ALLOW_DEV_IN_PRODUCTION"

// Names of the variables that deployments commonly say what they are with.
var stageVariables = []string{"NODE_ENV", "ENVIRONMENT", "APP_ENV"}

// local reports whether there is no pinboard.
func (o *Options) local() bool { return o.PinboardURL == "" }

// noEnvironment is what Options.Local puts in the environment's place.
func noEnvironment(string) (value string, ok bool) { return "", false }

// checkLocal checks options without a PinboardURL. What speaks for a forgotten
// one is a fault: a fleet whose workers all serve every id is what pinboard is
// there to prevent.
func (o *Options) checkLocal(env environment, f *faults) {
	if _, set := env(envPinboardURL); set {
		f.add("PinboardURL (%s) is set and empty: give a URL, or remove the variable for local mode", envPinboardURL)
		return
	}
	if o.Token != "" {
		f.add("Token (%s) is set, but PinboardURL (%s) is not", envToken, envPinboardURL)
	}
	if o.AdvertiseURL != "" {
		f.add("AdvertiseURL (%s) is set, but PinboardURL (%s) is not", envAdvertiseURL, envPinboardURL)
	}
	if allowed, _ := env(envAllowLocal); allowed == "1" {
		return
	}
	for _, name := range stageVariables {
		stage, _ := env(name)
		if stage = strings.ToLower(strings.TrimSpace(stage)); stage == "production" || stage == "prod" {
			f.add("PinboardURL (%s) is required where %s is %s: without one every process serves every id (%s=1 allows that)",
				envPinboardURL, name, stage, envAllowLocal)
			return
		}
	}
}

// expired returns the refusal of a worker that serves nothing: its lease is over or,
// where there is none, it has not started or was shut down.
func (d *directory) expired() *refusal {
	switch {
	case !d.opts.local():
		return refuseExpired
	case d.life.Err() == nil:
		return refuseNotStarted
	}
	return refuseShutDown
}

// warnLocal says that nothing is pinned here, also to those who gave no logger.
func warnLocal(log *zap.Logger) {
	const warning = "DEV MODE: no pinboard (PINBOARD_URL): this process serves every id itself, to anybody, without a lease"
	if log.Core().Enabled(zap.WarnLevel) {
		log.Warn(warning)
		return
	}
	encoder := zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig())
	zap.New(zapcore.NewCore(encoder, zapcore.Lock(os.Stderr), zap.WarnLevel)).Warn(warning)
}
