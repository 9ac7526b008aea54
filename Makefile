# Three commands do everything on a fresh machine: `make demo`, `make play` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := runs/demo

.PHONY: demo play test lint clean

$(VENV)/installed: requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(VENV)/installed-play: $(VENV)/installed requirements-play.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-play.txt
	touch $@

$(VENV)/installed-dev: $(VENV)/installed requirements-dev.txt requirements-play.txt requirements-slurm.txt requirements-onnx.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

# PSD on a pendulum: nine periods, learned from scratch on one CPU core in about three minutes.
demo: $(VENV)/installed
	rm -rf $(RUN)
	$(BIN)/python psd.py --env-id Pendulum-v1 --preset cpu --run-name demo
	$(BIN)/python evaluate.py $(RUN)
	$(BIN)/python plot.py demo $(RUN) --out $(RUN)/demo.png
	@echo "Look at $(RUN)/demo.png: the latent circles, and the pendulum that follows them."

# A trained HalfCheetah in the browser, with a slider for L.
play: $(VENV)/installed-play
	$(BIN)/python play.py results/halfcheetah --open

test: $(VENV)/installed-dev lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slurm'

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf $(VENV) $(RUN)
