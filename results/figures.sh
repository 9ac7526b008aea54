#!/usr/bin/env bash
# Draws every picture of results/ and docs/ anew, from the files beside it.
#
#     source .venv/bin/activate && bash results/figures.sh             # all of them
#     source .venv/bin/activate && bash results/figures.sh halfcheetah # those of one group
set -euo pipefail
cd "$(dirname "$0")/.."
groups=${*:-robots halfcheetah walker2d walker2d_paper ant hopper humanoid adaptive between pendulum fig3 pixel psd_metra traps play}
seeds=(results/halfcheetah results/halfcheetah_s{2,3,4,5})
walkers=(results/walker2d results/walker2d_s{2,3})
ants=(results/ant results/ant_s{2,3})

robots() { # the README's
    python benchmark/film.py results/humanoid results/halfcheetah results/ant --seconds 3 \
        --width 200 --out results/robots.gif
}

halfcheetah() {
    for figure in fig1 fig5 fig6; do
        python plot.py $figure results/halfcheetah --out results/halfcheetah/$figure.png
    done
    python plot.py periods "${seeds[@]}" --out results/halfcheetah/periods.png
    python plot.py curves "${seeds[@]/%//progress.csv}" --labels seed seed seed seed seed \
        --out results/halfcheetah/curves.png
    python benchmark/film.py results/halfcheetah --periods 6 12 18 --seconds 4 \
        --out results/halfcheetah/skills.gif
}

adaptive() {
    python plot.py fig9 results/adaptive --out results/adaptive/fig9.png
}

between() {
    python plot.py fig10 results/between --out results/between/fig10.png
}

walker2d() {
    python plot.py fig5 results/walker2d --out results/walker2d/fig5.png
    python plot.py periods "${walkers[@]}" --out results/walker2d/periods.png
    python plot.py curves "${walkers[@]/%//progress.csv}" --labels preset preset preset \
        --out results/walker2d/curves.png
    python benchmark/film.py results/walker2d --periods 10 18 30 --seconds 3 \
        --out results/walker2d/skills.gif
}

ant() {
    python plot.py fig5 results/ant --out results/ant/fig5.png
    python plot.py periods "${ants[@]}" --out results/ant/periods.png
    python plot.py curves "${ants[@]/%//progress.csv}" --labels preset preset preset \
        --out results/ant/curves.png
    python benchmark/film.py results/ant --periods 5 11 20 --seconds 3 \
        --out results/ant/skills.gif
}

walker2d_paper() {
    python plot.py curves "${walkers[@]/%//progress.csv}" results/walker2d_paper/progress.csv \
        --labels "our terms" "our terms" "our terms" "paper's reward" \
        --out results/walker2d_paper/curves.png
}

hopper() {
    python plot.py fig5 results/hopper --out results/hopper/fig5.png
    python plot.py periods results/hopper --out results/hopper/periods.png
    python plot.py curves results/hopper/progress.csv --out results/hopper/curves.png
    python benchmark/film.py results/hopper --periods 10 16 22 --seconds 3 \
        --out results/hopper/skills.gif
}

humanoid() {
    python plot.py fig5 results/humanoid --out results/humanoid/fig5.png
    python plot.py periods results/humanoid --out results/humanoid/periods.png
    python plot.py curves results/humanoid/progress.csv --out results/humanoid/curves.png
    python benchmark/film.py results/humanoid --periods 10 18 30 --seconds 3 \
        --out results/humanoid/skills.gif
}

pendulum() {
    python plot.py demo results/pendulum --out results/pendulum/demo.png
}

fig3() {
    python plot.py fig3 results/halfcheetah results/traps/paper_s1 \
        results/fig3/{metra,csd,dads,diayn} results/fig3/random.json \
        --out results/fig3_halfcheetah.png
}

pixel() {
    python plot.py fig5 results/pixel --out results/pixel/fig5.png
    python plot.py fig7 results/pixel --out results/pixel/fig7.png
    python evaluate.py results/pixel --gif results/pixel/skills.gif
}

psd_metra() {
    python plot.py fig8 results/psd_metra/ant_mutual --out results/psd_metra/fig8.png
    python plot.py fig8 results/psd_metra/ant_independent \
        --out results/psd_metra/fig8_independent.png
}

traps() {
    python benchmark/landscape.py # results/traps/landscape.json and landscape.png
}

play() { # needs chromium and requirements-dev.txt
    python benchmark/screenshots.py results/halfcheetah --out docs/play # play.png, play_slider.gif
}

for group in $groups; do
    $group
done
